"""plimsoll logprobs: the same bits in training, a prompt, generation and a server; against transformers; differences."""

import json
import math

import pytest
import tiny_llama
import tokenizer_texts
import torch
import transformers
from program import PROGRAM, done, plimsoll

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")

WAYS = ["train", "prefill", "decode", "serve"]
# Relative L2 of FP32 logits to those of FP64, as docs/decoders.md promises.
LOGITS = 2e-6
CONTEXT, TOKENS = 29, 150  # windows of which the last is shorter


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text(tokenizer_texts.python_source(3000))
    return path


def write_gpt2(folder):
    """A GPT-2 with the tokenizer of the small Llama."""
    tiny_llama.write(folder)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    torch.manual_seed(2)
    config = transformers.GPT2Config(vocab_size=vocabulary, n_embd=48, n_layer=2, n_head=4, n_positions=128, eos_token_id=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return tiny_llama.write(folder) if request.param == "llama" else write_gpt2(folder)


def logged(model, text, path, *more):
    options = ["--data", text, "--context", CONTEXT, "--tokens", TOKENS, "--threads=2", "--json", path]
    done("logprobs", "--model", model, *options, *more)
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    "options",
    [*(f"--dtype={dtype}" for dtype in ("fp32", "bf16", "fp16", "fp8", "nvfp4", "mxfp4")), "--recipe=fp8-row", "--recipe=mxfp8"],
)
def test_training_prompts_generation_and_servers_have_the_same_bits(model, text, tmp_path, options):
    files = {way: tmp_path / way for way in WAYS}
    for way, path in files.items():
        rows = logged(model, text, path, options, "--as", way, "--batch=3")
        assert len(rows) == TOKENS - 1 and len({row["log_probability"] for row in rows}) > TOKENS // 2
    for way in WAYS[1:]:
        assert files[way].read_text() == files["train"].read_text(), way
    same = plimsoll("logprobs", "--diff", files["train"], files["serve"])
    assert (same.returncode, same.stdout) == (0, f"{TOKENS - 1} tokens, all equal\n")


def test_log_probabilities_are_those_of_transformers(model, text, tmp_path):
    rows = logged(model, text, tmp_path / "ours", "--dtype=fp32")
    ids = transformers.AutoTokenizer.from_pretrained(model)(text.read_text()[:3000])["input_ids"][:TOKENS]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    assert [row["token"] for row in rows] == list(range(1, TOKENS)) and [row["id"] for row in rows] == ids[1:]
    for begin in range(0, TOKENS - 1, CONTEXT):
        window = torch.tensor(ids[begin : begin + CONTEXT + 1])
        with torch.inference_mode():
            logits = theirs(window[None, :-1]).logits[0]
        expected = torch.log_softmax(logits, -1).gather(1, window[1:, None])[:, 0]
        got = torch.tensor([row["log_probability"] for row in rows[begin : begin + CONTEXT]], dtype=torch.float64)
        # A logit's error is at most that of all together, and log-softmax takes away one more logit's.
        assert (got - expected).abs().max() <= 2 * LOGITS * logits.norm()


def test_differences_are_counted_and_exit_1(model, text, tmp_path):
    rows = logged(model, text, tmp_path / "a", "--dtype=fp32")
    for place in (7, 40):
        rows[place]["log_probability"] -= 0.25
    (tmp_path / "b").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = plimsoll("logprobs", "--diff", tmp_path / "a", tmp_path / "b")
    assert result.returncode == 1
    mean = f"{2 * 0.25 / (TOKENS - 1):.3g}"
    assert result.stdout == f"2 of {TOKENS - 1} tokens differ, token 8 first; largest 0.25 nats, mean of all {mean}\n"
    (tmp_path / "b").write_text("".join(json.dumps(row) + "\n" for row in rows[1:]))
    result = plimsoll("logprobs", "--diff", tmp_path / "a", tmp_path / "b")
    assert result.returncode == 1 and f"expected the {TOKENS - 1} tokens of" in result.stderr


def test_the_printed_perplexity_is_that_of_the_lines(model, text, tmp_path):
    path = tmp_path / "log"
    words = ["logprobs", "--model", model, "--data", text, "--dtype=bf16", "--threads=1", "--tokens", TOKENS, "--json", path]
    said = done(*words)
    values = [json.loads(line)["log_probability"] for line in path.read_text().splitlines()]
    assert said == f"{len(values)} tokens, perplexity {math.exp(-math.fsum(values) / len(values)):.6g}\n"


def test_mistakes_are_one_line(model, text, tmp_path):
    (tmp_path / "other").write_text('{"token": 1}\n')
    for words, code, error in [
        (("logprobs", "--model", model), 2, "expected either --model DIR and --data FILE, or --diff FILE FILE, got a part of"),
        (("logprobs", "--model", model, "--diff", text, text), 2, "or --diff FILE FILE, got both"),
        (("logprobs", "--diff", tmp_path / "other"), 2, "--diff: expected two files, got 1"),
        (("logprobs", "--model", model, "--data", text, "--context=100000"), 2, "--context: expected at most the "),
        (("logprobs", "--diff", tmp_path / "other", tmp_path / "other"), 1, "expected lines with token, id and log_probability"),
    ]:
        result = plimsoll(*words)
        assert (result.returncode, result.stderr.count("\n")) == (code, 1) and error in result.stderr, result
