"""Several LoRA adapters of one model in one server: each reply has the bits that `plimsoll generate --adapter` writes."""

import asyncio
import json
import random
import re
from typing import Any

import pytest
from lora_test import with_adapters
from plimsoll.serve import Engine
from program import generated, plimsoll
from served import MESSAGES, openai, serving, write_tiny

ADAPTERS = {"first": {"r": 5, "target_modules": "all-linear"}, "second": {"r": 3, "target_modules": ["v_proj", "down_proj"]}}
NAMES = [None, *ADAPTERS]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def adapters(tiny, tmp_path_factory):
    """Directories by names."""
    folder = tmp_path_factory.mktemp("adapters")
    for seed, (name, config) in enumerate(ADAPTERS.items()):
        with_adapters(tiny, seed=seed, **config).save_pretrained(folder / name)
    return {name: folder / name for name in ADAPTERS}


@pytest.fixture(scope="module")
def engine(tiny, adapters):
    with Engine(tiny, max_batch=8, adapters=adapters) as opened:
        yield opened


def generated_with(adapter, tiny, folder, *options):
    return generated(tiny, folder, *([] if adapter is None else ["--adapter", adapter]), *options)


def found(reply):
    tokens = list(reply)
    return [token.id for token in tokens], [token.logprob for token in tokens]


@pytest.mark.parametrize("dtype", ["stored", "bf16", "fp8"])
def test_replies_of_all_adapters_together_are_what_the_command_writes_of_each(dtype, tiny, adapters, tmp_path):
    options: dict[str, Any] = {"max_tokens": 30, "temperature": 0.9, "seed": 5, "logprobs": 0}
    with Engine(tiny, dtype=None if dtype == "stored" else dtype, adapters=adapters) as engine:
        replies = [engine.submit("The sea", adapter=name, **options) for name in NAMES * 3]
        together = [found(reply) for reply in replies]
    words = ("--dtype", dtype, "--prompt", "The sea", "--tokens", 30, "--temperature", 0.9, "--seed", 5)
    alone = [generated_with(adapters.get(name), tiny, tmp_path, *words)[1:] for name in NAMES]
    assert together == alone * 3
    assert len({tuple(ids) for ids, _ in alone}) == len(NAMES)


def test_random_traffic_has_the_bits_of_each_request_alone(tiny, adapters):
    draw = random.Random(3)
    starts = [[draw.randrange(300) for _ in range(100)] for _ in range(2)]
    requests: list[dict[str, Any]] = []
    for number in range(60):
        prompt = [draw.randrange(300) for _ in range(draw.randrange(1, 60))]
        if draw.random() < 0.5:
            prompt = draw.choice(starts)[: draw.randrange(1, 100)] + prompt
        requests.append({
            "prompt": prompt,
            "max_tokens": draw.randrange(1, 60),
            "temperature": draw.choice([0, 0.7, 1.5]),
            "seed": draw.randrange(4),
            "logprobs": 0,
            "adapter": NAMES[number % len(NAMES)],
        })  # fmt: skip
    cancelled = set(draw.sample(range(len(requests)), 8))

    async def traffic(engine):
        async def read(number):
            await asyncio.sleep(draw.random() / 10)
            reply = engine.submit(**requests[number])
            tokens = []
            async for token in reply:
                tokens.append(token)
                if number in cancelled and len(tokens) == number % 5:
                    reply.cancel()
            return found(tokens)

        return await asyncio.gather(*(read(number) for number in range(len(requests))))

    sizes = {"max_context": 256, "adapters": adapters}
    page_bytes = 2 * 2 * 32 * 2 * 16 * 4  # keys and values of two layers: 32 tokens, two heads of 16 FP32 numbers
    with Engine(tiny, max_batch=6, memory=10 * page_bytes / 2**30, **sizes) as engine:
        together = asyncio.run(traffic(engine))
    with Engine(tiny, max_batch=1, **sizes) as engine:
        alone = [found(engine.submit(**request)) for request in requests]
    for number, ((ids, log_probabilities), (all_ids, all_log_probabilities)) in enumerate(zip(together, alone, strict=True)):
        assert len(ids) == len(all_ids) or number in cancelled
        assert ids == all_ids[: len(ids)] and log_probabilities == all_log_probabilities[: len(ids)], requests[number]


def test_requests_name_an_adapter_behind_the_model(tiny, adapters, tmp_path):
    with serving(tiny, "--adapter", adapters["first"], "--adapter", f"other={adapters['second']}") as served:
        names = [model.id for model in served.client.models.list()]
        assert names == [tiny.name, f"{tiny.name}:first", f"{tiny.name}:other"]
        options = ("--chat", "--prompt", MESSAGES[0]["content"], "--tokens", 30, "--temperature", 0.8, "--seed", 4)
        texts = set()
        for name, adapter in zip(names, (None, adapters["first"], adapters["second"]), strict=True):
            reply = served.client.chat.completions.create(
                model=name, messages=MESSAGES, max_tokens=30, temperature=0.8, seed=4, logprobs=True
            )
            text, _, expected = generated_with(adapter, tiny, tmp_path, *options)
            assert reply.model == name
            assert reply.choices[0].message.content == text
            assert [token.logprob for token in reply.choices[0].logprobs.content] == expected
            pieces = list(
                served.client.completions.create(model=name, prompt="The sea", max_tokens=3, temperature=0, stream=True)
            )
            assert {piece.model for piece in pieces} == {name}
            texts.add(text)
        assert len(texts) == 3
        for name in ("any", f"{tiny.name}:", f"{tiny.name}:second", "first", ""):
            with pytest.raises(openai.NotFoundError) as caught:
                served.client.completions.create(model=name, prompt="a")
            assert caught.value.code == "model_not_found" and caught.value.param == "model"
            assert f"{tiny.name}:other" in caught.value.message
        status, _, body = served.ask("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 1}))
        assert status == 200 and json.loads(body)["model"] == tiny.name
        assert served.stop() == 0


def test_what_is_wrong_with_adapters_is_named(tiny, adapters, engine, tmp_path):
    (tmp_path / "first").mkdir()
    for code, options, text in (
        (2, ("--adapter", tmp_path / "nowhere"), "--adapter: expected a directory, or NAME=DIR"),
        (2, ("--adapter", "=" + str(adapters["first"])), "expected a name"),
        (2, ("--adapter", adapters["first"], "--adapter", tmp_path / "first"), "names of their own"),
        (1, ("--adapter", tmp_path), "adapter_config.json"),
    ):
        result = plimsoll("serve", "--model", tiny, "--port", 0, *options)
        assert result.returncode == code and text in result.stderr and result.stderr.count("\n") == 1, result
    with pytest.raises(ValueError, match="expected the name of an adapter that is served, got 'third'"):
        engine.submit([1], adapter="third")
    with pytest.raises(TypeError, match="submit: expected adapter a string, got 3"):
        engine.submit([1], adapter=3)
    given: Any
    for given, error, text in (
        ({"a": tmp_path}, RuntimeError, re.escape("adapter_config.json")),
        ({"": adapters["first"]}, ValueError, "Engine: expected a name"),
        ({3: adapters["first"]}, TypeError, "Engine: expected an adapter's name a string, got 3"),
    ):
        with pytest.raises(error, match=text):
            Engine(tiny, adapters=given)
