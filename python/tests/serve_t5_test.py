"""`plimsoll serve` and plimsoll.serve.Engine of a T5: the replies of `plimsoll t5 generate`, alone and with others."""

import asyncio
import json
import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from chat_template_test import TEMPLATES
from plimsoll.serve import Engine
from program import plimsoll
from served import MESSAGES, openai, serving
from t5_command import SENTENCES, SENTINELS, new_model, results

PROMPTS = SENTENCES[:6]
TOKENS = 30
WITHOUT_TEMPLATE = "the page sends each text by itself, /v1/chat/completions is not served"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5")
    return new_model(folder), folder


@pytest.fixture(scope="module")
def folder(model):
    return model[1]


@pytest.fixture(scope="module")
def server(folder):
    with serving(folder, "--max-batch", 4, "--queue", 200) as served:
        yield served
        served.process.send_signal(signal.SIGTERM)
        _, errors = served.process.communicate(timeout=300)
        assert served.process.returncode == 0
        assert errors == f"plimsoll: warning: no chat template: {WITHOUT_TEMPLATE}\n"


@pytest.fixture(scope="module")
def engine(folder):
    with Engine(folder, max_batch=4) as opened:
        yield opened


@pytest.fixture(scope="module")
def generated(folder, tmp_path_factory):
    """Texts and ids of `plimsoll t5 generate` of PROMPTS."""
    path = tmp_path_factory.mktemp("generated")
    (path / "in").write_text("\n".join(PROMPTS))
    lines, _ = results(path, "generate", "--model", folder, "--input", path / "in", "--max-new-tokens", TOKENS)
    return [(line["text"], line["ids"]) for line in lines]


def test_completions_are_what_the_command_writes(server, generated):
    ask = lambda prompt: server.client.completions.create(model="any", prompt=prompt, max_tokens=TOKENS)
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        replies = list(pool.map(ask, PROMPTS))
    for reply, (text, ids) in zip(replies, generated, strict=True):
        assert reply.choices[0].text == text
        ended = len(ids) < TOKENS
        assert reply.choices[0].finish_reason == ("stop" if ended else "length")
        assert reply.usage.completion_tokens == len(ids) + ended


def test_usage_counts_the_encoders_tokens_and_ids_are_a_prompt(server, engine, generated):
    ids = engine.tokenizer.encode(PROMPTS[0])
    assert ids[-1] == 1
    for prompt in (PROMPTS[0], ids):
        reply = server.client.completions.create(model="any", prompt=prompt, max_tokens=TOKENS)
        assert reply.usage.prompt_tokens == len(ids) and reply.choices[0].text == generated[0][0]


def test_a_stream_has_the_text_and_the_log_probabilities_of_the_whole(server, generated):
    options = {"model": "any", "prompt": PROMPTS[1], "max_tokens": TOKENS, "logprobs": 2}
    whole = server.client.completions.create(**options)
    pieces = [piece.choices[0] for piece in server.client.completions.create(**options, stream=True)]
    assert "".join(piece.text for piece in pieces) == whole.choices[0].text == generated[1][0]
    streamed = [number for piece in pieces if piece.logprobs for number in piece.logprobs.token_logprobs]
    assert streamed == whole.choices[0].logprobs.token_logprobs and len(streamed) == whole.usage.completion_tokens
    assert all(number <= 0 for number in streamed)


def test_the_tokens_of_log_probabilities_have_the_spaces_that_they_add(server):
    for seed in range(4):
        options = {"model": "any", "prompt": PROMPTS[0], "max_tokens": 60, "temperature": 1, "seed": seed, "logprobs": 5}
        choice = server.client.completions.create(**options).choices[0]
        offset, pieces = 0, zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True)
        for token, at in pieces:
            assert at == offset
            if re.fullmatch(r"<extra_id_\d+>|</s>|<pad>|<unk>", token):
                continue
            assert choice.text.startswith(token, offset)
            offset += len(token)
        assert offset == len(choice.text)
    greedy = server.client.completions.create(**{**options, "temperature": 0}).choices[0].logprobs
    for token, number, top in zip(greedy.tokens, greedy.token_logprobs, greedy.top_logprobs, strict=True):
        assert top[token] == number, "the likeliest of those with one text"


def test_an_empty_prompt_is_the_end_token_alone(server, engine):
    expected = [token.logprob for token in engine.submit([1], max_tokens=5, temperature=0, logprobs=0)]
    assert [token.logprob for token in engine.submit("", max_tokens=5, temperature=0, logprobs=0)] == expected
    reply = server.client.completions.create(model="any", prompt="", max_tokens=5, temperature=0, logprobs=0)
    assert reply.usage.prompt_tokens == 1 and reply.choices[0].logprobs.token_logprobs == expected


def test_equal_prompts_are_encoded_once(server, folder):
    prompt = "Twelve boats are in the harbour, and one is at sea."
    counts = lambda: (server.metric("read_tokens_total"), server.metric("shared_tokens_total"))
    ask = lambda n: server.client.completions.create(
        model="any", prompt=prompt, max_tokens=20, temperature=1.5, seed=3, n=n, logprobs=0
    )
    with Engine(folder, max_batch=1) as engine:
        alone = [token.logprob for token in engine.submit(prompt, max_tokens=20, temperature=1.5, seed=3, logprobs=0)]
    for n in (3, 1, 4):
        server.wait_until_idle()
        read, shared = counts()
        reply = ask(n)
        server.wait_until_idle()
        tokens = reply.usage.prompt_tokens
        encoded = 1 if n == 3 else 0
        # Each decoder reads a token of its own first.
        assert counts() == (read + n + encoded * tokens, shared + (n - encoded) * tokens)
        assert reply.choices[0].logprobs.token_logprobs == alone
    assert server.metric("cache_kept_bytes") == server.metric("cache_used_bytes") > 0
    with ThreadPoolExecutor(4) as pool:
        assert all(reply.choices[0].logprobs.token_logprobs == alone for reply in pool.map(ask, [1] * 12))


def test_log_probabilities_are_hugging_faces(model, engine):
    theirs, _ = model
    ids = engine.tokenizer.encode(PROMPTS[2])
    tokens = list(engine.submit(ids, max_tokens=TOKENS, temperature=0, logprobs=0))
    written = torch.tensor([[0, *(token.id for token in tokens)]])
    with torch.no_grad():
        logits = theirs.double()(input_ids=torch.tensor([ids]), decoder_input_ids=written[:, :-1]).logits
    theirs.float()
    expected = torch.log_softmax(logits, -1)[0].gather(1, written[0, 1:, None]).squeeze(1)
    # FP32 sums of at most 528 terms in six parts of each of five blocks, on logits of a few tens.
    assert torch.allclose(
        torch.tensor([token.logprob for token in tokens]).double(), expected, rtol=0, atol=6 * 5 * 528 * 2**-24 * 8
    )


def test_choices_stops_and_seeds(server, engine, generated):
    options = {"model": "any", "prompt": PROMPTS[0], "max_tokens": 12, "temperature": 1.5, "seed": 4}
    one = server.client.completions.create(**options)
    three = server.client.completions.create(**options, n=3)
    texts = [choice.text for choice in three.choices]
    assert texts[0] == one.choices[0].text and len(set(texts)) > 1
    drawn = engine.submit(PROMPTS[0], max_tokens=12, temperature=1.5, seed=4)
    assert "".join(token.text for token in drawn) == texts[0]
    text = generated[0][0]
    stop = text[len(text) // 2 :][:3]
    cut = server.client.completions.create(model="any", prompt=PROMPTS[0], max_tokens=TOKENS, stop=stop).choices[0]
    assert cut.text == text[: text.index(stop)] and cut.finish_reason == "stop"


def test_what_a_t5_does_not_serve_is_refused_by_name(server, folder, tmp_path):
    with pytest.raises(openai.BadRequestError, match="expected a model with a chat template") as refused:
        server.client.chat.completions.create(model="any", messages=MESSAGES)
    assert refused.value.param == "messages"
    with pytest.raises(openai.BadRequestError, match="does not say which bytes a token adds") as refused:
        server.client.completions.create(model="any", prompt="a", extra_body={"response_format": {"type": "json_object"}})
    assert refused.value.param == "response_format"
    for words, message in (
        (("--kv", "fp8"), "--kv: expected computed for a T5"),
        (("--adapter", folder), "--adapter: expected a decoder-only model, got a T5"),
    ):
        result = plimsoll("serve", "--model", folder, "--port", 0, *words)
        assert result.returncode == 2 and message in result.stderr and len(result.stderr.splitlines()) == 1
    with pytest.raises(openai.BadRequestError, match="expected less than the 2048 tokens that a prompt and its reply") as refused:
        server.client.completions.create(model="any", prompt="word " * 2048)
    assert refused.value.code == "context_length_exceeded"
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(folder / name, bare / name)
    result = plimsoll("serve", "--model", bare, "--port", 0)
    assert result.returncode == 1 and "expected spiece.model, found none" in result.stderr
    with pytest.raises(ValueError, match="expected keys and values as they are computed"):
        Engine(folder, kv="bf16")
    with pytest.raises(ValueError, match="expected no adapters for a T5"):
        Engine(folder, adapters={"a": folder})
    with Engine(bare) as engine, pytest.raises(ValueError, match=r"spiece\.model"):
        engine.submit("a text")


def test_a_chat_template_makes_the_encoders_input(folder, tmp_path):
    chats = tmp_path / "chats"
    shutil.copytree(folder, chats)
    (chats / "tokenizer_config.json").write_text(json.dumps({"extra_ids": SENTINELS, "eos_token": "</s>"}))
    (chats / "chat_template.jinja").write_text(TEMPLATES["chatml"])
    with serving(chats) as served:
        reply = served.client.chat.completions.create(model="any", messages=MESSAGES, max_tokens=8)
        assert reply.choices[0].message.role == "assistant" and reply.usage.completion_tokens <= 8
        assert served.stop() == 0


def test_an_event_loop_reads_many_at_once(engine, generated):
    async def read(prompt):
        return [token async for token in engine.submit(prompt, max_tokens=TOKENS, temperature=0)]

    async def main():
        return await asyncio.gather(*map(read, PROMPTS * 2))

    for tokens, (text, ids) in zip(asyncio.run(main()), generated * 2, strict=True):
        assert [token.id for token in tokens if token.id != 1] == ids
        assert "".join(token.text for token in tokens) == text


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8"])
def test_every_dtype_writes_what_the_command_writes(folder, tmp_path, dtype):
    (tmp_path / "in").write_text("\n".join(PROMPTS))
    words = ("generate", "--model", folder, "--input", tmp_path / "in", "--max-new-tokens", TOKENS, "--dtype", dtype)
    lines, _ = results(tmp_path, *words)
    with Engine(folder, dtype) as engine:
        replies = [engine.submit(prompt, max_tokens=TOKENS, temperature=0) for prompt in PROMPTS]
        assert [[token.id for token in reply if token.id != 1] for reply in replies] == [line["ids"] for line in lines]


def test_a_gauged_checkpoint_is_served_in_fp16_without_fixes(folder, tmp_path):
    gauged = tmp_path / "gauged"
    assert plimsoll("gauge", "--model", folder, "--out", gauged).returncode == 0
    shutil.copy(folder / "spiece.model", gauged / "spiece.model")
    (tmp_path / "in").write_text("\n".join(PROMPTS))
    words = ("generate", "--model", gauged, "--input", tmp_path / "in", "--max-new-tokens", TOKENS, "--dtype", "fp16")
    lines, _ = results(tmp_path, *words, "--fixes", "gauge")
    with Engine(gauged, "fp16") as engine:
        replies = [engine.submit(prompt, max_tokens=TOKENS, temperature=0) for prompt in PROMPTS]
        assert [[token.id for token in reply if token.id != 1] for reply in replies] == [line["ids"] for line in lines]
