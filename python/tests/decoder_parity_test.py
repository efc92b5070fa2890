"""plimsoll parity on Hugging Face directories of decoder-only models, against transformers and the definitions of its figures."""

import json
import math
import pathlib
import tempfile

import pytest
import tiny_llama
import tokenizer_texts
import torch
from program import done, plimsoll
from rounding import gamma
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXT = tokenizer_texts.python_source()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_llama.write(tmp_path_factory.mktemp("tiny"), spare_tokens=3)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


def test_parity_measures_each_dtype_on_a_text(tiny, text, tmp_path):
    table = done("parity", "--model", tiny, "--data", text, "--context", 64, "--tokens", 500, "--json", tmp_path / "parity")
    assert "perplexity" in table
    figures = json.loads((tmp_path / "parity").read_text())
    assert figures["tokens"] == 499
    fp32 = figures["dtypes"]["fp32"]
    assert fp32["logits_kl"] == 0 and fp32["top1_agreement"] == 1
    assert 0 < figures["dtypes"]["bf16"]["logits_kl"] < figures["dtypes"]["fp8"]["logits_kl"]
    with torch.inference_mode():
        tokenizer = AutoTokenizer.from_pretrained(tiny)
        model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float64)
        ids, losses, largest = tokenizer(TEXT, return_tensors="pt")["input_ids"][0, :500], [], 0.0
        for begin in range(0, 499, 64):
            window = ids[begin : begin + 65]
            logits = model(window[None, :-1]).logits[0]
            losses.append(torch.nn.functional.cross_entropy(logits, window[1:], reduction="none"))
            largest = max(largest, logits.norm(dim=-1).max().item())
    # Logits are within 1e-6 of the norm of theirs, and the loss of a token moves by two of them at most.
    mean = torch.cat(losses).mean().item()
    assert abs(math.log(fp32["perplexity"]) - mean) < 2e-6 * largest * 65**0.5


def test_parity_counts_divergences_choices_and_bytes_by_their_definitions(tiny, text, tmp_path):
    done(
        "parity",
        "--model",
        tiny,
        "--data",
        text,
        "--context",
        64,
        "--tokens",
        300,
        "--dtypes",
        "fp32,fp16,fp8,nvfp4,mxfp4",
        "--json",
        tmp_path / "parity",
    )
    figures = json.loads((tmp_path / "parity").read_text())["dtypes"]
    ids = AutoTokenizer.from_pretrained(tiny)(TEXT, return_tensors="pt")["input_ids"][:, :300]

    @torch.no_grad()
    def log_probabilities(dtype):
        model = torch.classes.plimsoll.DecoderModel(str(tiny), dtype)
        logits = [model.forward(ids[:, begin : min(begin + 64, 299)], None)[0] for begin in range(0, 299, 64)]
        return torch.log_softmax(torch.cat(logits).double(), -1)

    want = log_probabilities("fp32")
    for dtype in ("fp16", "fp8", "nvfp4", "mxfp4"):
        got = log_probabilities(dtype)
        terms = want.exp() * (want - got)
        divergence, magnitude = terms.sum(-1), (want.exp() * (want.abs() + got.abs())).sum(-1).max().item()
        bound = gamma(4 * want.shape[1], torch.float64) * magnitude
        ordered = divergence.sort().values
        assert abs(figures[dtype]["logits_kl"] - divergence.mean().item()) <= bound
        assert abs(figures[dtype]["logits_kl_p99"] - ordered[math.ceil(0.99 * 299) - 1].item()) <= bound
        assert abs(figures[dtype]["logits_kl_p999"] - ordered[-1].item()) <= bound
        first = want.argmax(-1)
        assert figures[dtype]["top1_agreement"] == got.argmax(-1).eq(first).double().mean().item()
        among_five = got.gather(1, first[:, None])[:, 0] >= got.topk(5).values[:, -1]  # the fifth's equals included
        assert figures[dtype]["top5_agreement"] == among_five.double().mean().item()
        assert figures[dtype]["tokens_per_s"] > 0
    assert figures["fp32"]["bytes_per_weight"] == 4 and figures["fp16"]["bytes_per_weight"] == 2
    assert figures["fp32"]["top5_agreement"] == 1 and figures["fp32"]["logits_kl_p999"] == 0
    # E4M3 with an FP32 scale a row in the blocks' matrices, BF16 elsewhere.
    weights = load_file(tiny / "model.safetensors")
    codes = [w for name, w in weights.items() if w.dim() == 2 and ".layers." in name]
    others = sum(w.numel() for w in weights.values()) - sum(w.numel() for w in codes)
    held = sum(w.numel() + 4 * w.shape[0] for w in codes) + 2 * others
    elements = sum(w.numel() for w in weights.values())
    assert figures["fp8"]["bytes_per_weight"] == held / elements
    # E2M1 with a scale of one byte for 16 or 32 elements of a row, and NVFP4's FP32 scale for each of a block's four products.
    layers = json.loads((tiny / "config.json").read_text())["num_hidden_layers"]
    for dtype, block, tensor_scales in (("nvfp4", 16, 4 * layers), ("mxfp4", 32, 0)):
        held = sum(w.shape[0] * (-(-w.shape[1] // 2) + -(-w.shape[1] // block)) for w in codes) + 4 * tensor_scales + 2 * others
        assert figures[dtype]["bytes_per_weight"] == held / elements
    assert figures["fp8"]["logits_kl"] < min(figures["nvfp4"]["logits_kl"], figures["mxfp4"]["logits_kl"])


@pytest.mark.parametrize(
    ("limit", "code", "expected"),
    [
        (["--max-kl", "10"], 0, ""),
        (["--min-agree", "0.01", "--max-ppl", "1e9"], 0, ""),
        (["--max-kl", "0"], 1, "parity: expected a mean KL of at most 0 in fp8, got "),
        (["--min-agree", "1"], 1, "parity: expected an agreement of at least 1 in fp8, got "),
        (["--max-ppl", "1.5"], 1, "parity: expected a perplexity of at most 1.5 in fp32, got "),
        (["--max-kl", "-1"], 2, "--max-kl"),
        (["--min-agree", "2"], 2, "--min-agree"),
        (["--inject", "1,2"], 2, "--inject: expected CHANNEL,LAYER,FACTOR, got '1,2'"),
        (["--inject", "0,x,4"], 2, "--inject LAYER"),
        (["--inject", "0,99,4"], 2, "--inject: expected a layer below "),
        (["--inject", "999,0,4"], 2, "--inject: expected a channel below "),
    ],
)
def test_parity_judges_by_the_limits_that_it_is_given(limit, code, expected, tiny, text, tmp_path):
    words = ["--dtypes", "fp32,fp8", "--context", 32, "--tokens", 100, "--json", tmp_path / "json"]
    result = plimsoll("parity", "--model", tiny, "--data", text, *words, *limit)
    assert result.returncode == code and expected in result.stderr, result
    assert result.stderr.count("\n") == (0 if code == 0 else 1)
    assert ("perplexity" in result.stdout) == (code < 2)  # the figures are told before they are judged


def test_parity_fails_on_an_outlier_that_fp16_cannot_hold(tiny, text, tmp_path):
    words = ["--model", tiny, "--data", text, "--dtypes", "fp32,fp16", "--context", 32, "--tokens", 100, "--max-kl", 0.1]
    clean = done("parity", *words, "--json", tmp_path / "clean")
    assert "NaN" not in clean
    before = set(pathlib.Path(tempfile.gettempdir()).iterdir())
    result = plimsoll("parity", *words, "--inject", f"1,1,{2**30}", "--json", tmp_path / "json")
    assert result.returncode == 1 and "expected a mean KL of at most 0.1 in fp16, got Inf or NaN" in result.stderr
    assert not [path for path in set(pathlib.Path(tempfile.gettempdir()).iterdir()) - before if "plimsoll-" in path.name]
    found, plain = (json.loads((tmp_path / name).read_text())["dtypes"] for name in ("json", "clean"))
    assert found["fp32"]["perplexity"] == plain["fp32"]["perplexity"]  # a power of two: the function has the same bits
    assert not found["fp16"]["finite"] and plain["fp16"]["finite"]
