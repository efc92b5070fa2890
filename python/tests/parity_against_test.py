"""plimsoll parity --against: a directory judged by the values that it was made from."""

import json
import math
import shutil

import pytest
import tiny_llama
import tokenizer_texts
import torch
from program import done, plimsoll
from rounding import gamma
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

TEXT = tokenizer_texts.python_source()
TOKENS, CONTEXT = 300, 64


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    return tiny_llama.write(tmp_path_factory.mktemp("values"), hidden_size=96, intermediate_size=160, initializer_range=0.1)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def codes(values, tmp_path_factory):
    out = tmp_path_factory.mktemp("codes") / "nvfp4"
    done("quantize", "--model", values, "--out", out, "--format", "nvfp4")
    return out


@torch.no_grad()
def log_probabilities(directory, dtype, tokenizer):
    """FP64 of what the model says before each of TOKENS - 1 tokens, and those tokens."""
    ids = AutoTokenizer.from_pretrained(tokenizer)(TEXT, return_tensors="pt")["input_ids"][:, :TOKENS]
    model = torch.classes.plimsoll.DecoderModel(str(directory), dtype)
    begins = range(0, TOKENS - 1, CONTEXT)
    logits = [model.forward(ids[:, begin : min(begin + CONTEXT, TOKENS - 1)], None)[0] for begin in begins]
    return torch.log_softmax(torch.cat(logits).double(), -1), ids[0, 1:]


def parity(model, against, text, *words, json_file=None):
    size = ["--context", CONTEXT, "--tokens", TOKENS]
    results = ["--json", json_file] if json_file else []
    return plimsoll("parity", "--model", model, "--against", against, "--data", text, *size, *words, *results)


def test_codes_are_judged_by_the_values_that_they_were_made_of(values, codes, text, tmp_path):
    result = parity(codes, values, text, "--dtypes", "fp32,bf16", json_file=tmp_path / "json")
    assert result.returncode == 0, result
    rows = [line.split() for line in result.stdout.splitlines()]
    assert [row[0] for row in rows if row and row[0] in ("reference", "fp32", "bf16")] == ["reference", "fp32", "bf16"]
    assert f"each dtype of {codes} against fp32 of {values}, the reference" in result.stdout
    figures = json.loads((tmp_path / "json").read_text())
    assert figures["model"] == str(codes) and figures["against"] == str(values) and figures["tokens"] == TOKENS - 1
    want, targets = log_probabilities(values, "fp32", values)

    def expect_perplexity(entry, of):
        magnitude = of.abs().max().item()
        loss = -of.gather(1, targets[:, None]).mean().item()
        assert abs(math.log(entry["perplexity"]) - loss) <= gamma(4 * of.shape[1], torch.float64) * magnitude

    expect_perplexity(figures["reference"], want)
    assert figures["reference"].keys() == {"finite", "perplexity", "bytes_per_weight", "tokens_per_s"}
    assert figures["reference"]["bytes_per_weight"] == 4 and figures["reference"]["finite"]
    assert figures["dtypes"].keys() == {"fp32", "bf16"}
    for dtype, entry in figures["dtypes"].items():
        got, _ = log_probabilities(codes, dtype, values)
        divergence = (want.exp() * (want - got)).sum(-1)
        magnitude = (want.exp() * (want.abs() + got.abs())).sum(-1).max().item()
        bound = gamma(4 * want.shape[1], torch.float64) * magnitude
        ordered = divergence.sort().values
        assert abs(entry["logits_kl"] - divergence.mean().item()) <= bound
        assert abs(entry["logits_kl_p99"] - ordered[math.ceil(0.99 * (TOKENS - 1)) - 1].item()) <= bound
        assert abs(entry["logits_kl_p999"] - ordered[-1].item()) <= bound
        assert entry["top1_agreement"] == got.argmax(-1).eq(want.argmax(-1)).double().mean().item()
        assert entry["logits_kl"] > 1e-4 and entry["bytes_per_weight"] < 4
        expect_perplexity(entry, got)


@pytest.mark.parametrize("name", ["values", "codes"])
def test_a_directory_against_itself_has_no_divergence_in_fp32(name, text, tmp_path, request):
    directory = request.getfixturevalue(name)
    assert parity(directory, directory, text, "--dtypes", "fp32", json_file=tmp_path / "json").returncode == 0
    figures = json.loads((tmp_path / "json").read_text())
    entry = figures["dtypes"]["fp32"]
    assert entry["logits_kl"] == 0 and entry["logits_kl_p999"] == 0 and entry["top1_agreement"] == 1
    assert entry["perplexity"] == figures["reference"]["perplexity"]


def test_codes_have_the_divergence_of_the_dtype_that_makes_them_at_load(values, codes, text, tmp_path):
    assert parity(codes, values, text, json_file=tmp_path / "read").returncode == 0
    words = ["--context", CONTEXT, "--tokens", TOKENS, "--dtypes", "nvfp4", "--json", tmp_path / "made"]
    done("parity", "--model", values, "--data", text, *words)
    read, made = (json.loads((tmp_path / name).read_text())["dtypes"] for name in ("read", "made"))
    assert read.keys() == {"bf16"}  # the usual one of codes against values
    assert all(read["bf16"][name] == made["nvfp4"][name] for name in made["nvfp4"] if name != "tokens_per_s")


def test_values_against_values_have_the_usual_dtypes(values, text, tmp_path):
    assert parity(values, values, text, json_file=tmp_path / "json").returncode == 0
    assert json.loads((tmp_path / "json").read_text())["dtypes"].keys() == {"fp32", "bf16", "fp16", "fp8"}


def test_dtypes_that_are_typed_are_never_dropped(codes, values, text):
    usual = "fp32,bf16,fp16,fp8"
    words = ["--data", text, "--context", CONTEXT, "--tokens", 20]
    for result in (
        plimsoll("parity", "--model", codes, *words, "--dtypes", usual),
        plimsoll("parity", "--model", codes, "--against", values, *words, "--dtypes", usual),
    ):
        assert result.returncode == 1 and result.stderr.count("\n") == 1, result
        assert "expected stored, fp32, bf16 or fp16 as the dtype of weights that are codes, got fp8" in result.stderr


def test_limits_judge_what_is_measured_against_the_other_directory(codes, values, text):
    assert parity(codes, values, text, "--max-kl", 10).returncode == 0
    result = parity(codes, values, text, "--max-kl", "1e-6")
    assert result.returncode == 1 and "parity: expected a mean KL of at most 1e-06 in bf16, got " in result.stderr


def other_tokenizer(codes, folder):
    """The same vocabulary but for two tokens that have changed places."""
    shutil.copytree(codes, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return f"expected the tokenizer of {codes}, got another: token "


def other_merges(codes, folder):
    """The same tokens, of which a text becomes others."""
    shutil.copytree(codes, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = []
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return f"expected the tokenizer of {codes}, got another, which reads "


def other_vocabulary(codes, folder):
    folder.mkdir()
    tiny_llama.write(folder, spare_tokens=3)
    return f" tokens of {codes}, got "


def shorter_context(codes, folder):
    shutil.copytree(codes, folder)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = CONTEXT // 2
    (folder / "config.json").write_text(json.dumps(config))
    return f"--context: expected at most the {CONTEXT // 2} tokens that the model sees, got {CONTEXT}"


@pytest.mark.parametrize("change", [other_tokenizer, other_merges, other_vocabulary, shorter_context])
def test_models_of_other_tokens_are_one_error(change, codes, text, tmp_path):
    expected = change(codes, tmp_path / "other")
    result = parity(tmp_path / "other", codes, text)
    assert result.returncode in (1, 2) and result.stderr.count("\n") == 1, result
    assert expected in result.stderr and "perplexity" not in result.stdout


def test_without_a_context_windows_are_as_long_as_both_models_see(codes, values, text, tmp_path):
    shorter_context(codes, tmp_path / "short")
    words = ["--data", text, "--tokens", TOKENS, "--dtypes", "bf16,fp32"]
    size = CONTEXT // 2
    for model, against in ((tmp_path / "short", values), (values, tmp_path / "short")):
        results = {}
        for name, context in {"none": [], "typed": ["--context", size], "long": ["--context", size + 1]}.items():
            json_file = tmp_path / name
            result = plimsoll("parity", "--model", model, "--against", against, *words, *context, "--json", json_file)
            results[name] = (
                result,
                json.loads(json_file.read_text())["reference"]["perplexity"] if result.returncode == 0 else 0,
            )
        said = f"plimsoll: warning: parity: the text is read in windows of {size} tokens, as many as {tmp_path / 'short'} sees\n"
        assert [results[name][0].stderr for name in ("none", "typed")] == [said, ""]
        assert results["none"][1] == results["typed"][1] > 1
        assert f"--context: expected at most the {size} tokens" in results["long"][0].stderr


def test_t5_and_what_a_directory_cannot_be_compared_with_are_one_error(values, text, tmp_path):
    t5 = tmp_path / "t5"
    config = T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(config).save_pretrained(t5)
    for model, against, words, expected in (
        (t5, values, [], f"--against: expected two models other than T5, got {t5}"),
        (values, t5, [], f"--against: expected two models other than T5, got {t5}"),
        (values, values, ["--inject", "0,0,4"], f"--inject: expected one directory, got {values} beside it"),
        (values, tmp_path / "none", [], "--against"),
    ):
        result = parity(model, against, text, *words)
        assert result.returncode == 2 and result.stderr.count("\n") == 1 and expected in result.stderr, result
