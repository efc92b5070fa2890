"""plimsoll line: what each format costs, a plan for FP8, and who follows it; line_promise_test.py has the plan's promise."""

import json
import random
import shutil
from html import escape

import decoder_models
import grafted_decoders
import pytest
import tiny_llama
import tokenizer_texts
import torch
from line_models import LINE, config_of, line, soft, spread, write
from plimsoll.report.line import line_html
from program import PROGRAM, done, interrupted, plimsoll
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")

TEXT = ("--context", 48, "--tokens", 768)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(tokenizer_texts.python_source())
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tiny_llama.write(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def plain_kl(tokenizer, text, tmp_path_factory):
    """Mean KL of FP8 without an outlier."""
    root = tmp_path_factory.mktemp("plain")
    folder = write(soft(decoder_models.make("llama", config_of("llama", tokenizer))), tokenizer, root / "model")
    result, found = line(folder, text, root / "lined", *TEXT, "--max-kl", 100)
    assert found is not None, result.stderr
    assert found["plan"] is None and found["products"] == []
    return found["formats"]["fp8"]["logits_kl"]


@pytest.fixture(scope="module")
def lined(tokenizer, text, plain_kl, tmp_path_factory):
    """(source's directory, the one written, its figures, the product with the outlier)."""
    root = tmp_path_factory.mktemp("lined")
    model = soft(decoder_models.make("llama", config_of("llama", tokenizer)))
    product = spread(model, 1, "values", random.Random(1))
    folder = write(model, tokenizer, root / "model")
    result, found = line(folder, text, root / "lined", *TEXT, "--max-kl", 2 * plain_kl)
    assert result.returncode == 0, result.stdout + result.stderr
    assert product in result.stdout
    return folder, root / "lined", found, product


def test_an_interrupted_line_leaves_nothing(tokenizer, text, tmp_path):
    folder = write(soft(decoder_models.make("llama", config_of("llama", tokenizer))), tokenizer, tmp_path / "model")
    words = ["line", "--model", folder, "--data", text, "--out", tmp_path / "out", "--tokens", 20_000]
    _, error, code = interrupted(words, (tmp_path / "out.partial").exists)
    assert (code, error) == (130, "plimsoll: line: interrupted, nothing is written\n")
    assert list(tmp_path.iterdir()) == [folder]


def overflowing(tokenizer, folder):
    """A directory whose FP16 is not finite until it is gauged."""
    model = grafted_decoders.make("mistral", decoder_models.tokens(8, 48), config_of("mistral", tokenizer), ("stream", "key"))
    return write(model, tokenizer, folder)


def test_an_interrupted_search_for_exponents_is_not_finished_first(tokenizer, text, tmp_path):
    folder = overflowing(tokenizer, tmp_path / "model")
    words = ["line", "--model", folder, "--data", text, "--out", tmp_path / "out", *TEXT, "--max-kl", 100]
    output, error, code = interrupted(words, (tmp_path / "out.partial" / "gauged.partial").exists)
    assert (code, error) == (130, "plimsoll: line: interrupted, nothing is written\n")
    assert output.endswith("measuring gauge\n"), output
    assert list(tmp_path.iterdir()) == [folder]


def test_plan_spares_the_product_with_the_outlier_alone(lined):
    _, out, found, product = lined
    formats = found["formats"]
    assert not formats["fp8"]["holds"] and formats["fp8 planned"]["holds"] and formats["bf16"]["holds"]
    assert formats["fp8 planned"]["logits_kl"] <= found["max_kl"] < formats["fp8"]["logits_kl"]
    assert found["plan"]["high_precision"] == [product]
    alone = {each["name"]: each["kl_alone"] for each in found["products"]}
    assert max(alone, key=lambda name: alone[name]) == product
    assert json.loads((out / "config.json").read_text())["plimsoll_plan"] == {"high_precision": [product]}


def test_model_that_is_written_is_the_same_function_elsewhere(lined, text):
    source, out, _, _ = lined
    tokens = AutoTokenizer.from_pretrained(source)(text.read_text(), return_tensors="pt")["input_ids"][:, :64]
    with torch.inference_mode():
        want, got = (AutoModelForCausalLM.from_pretrained(each, dtype=torch.float32)(tokens).logits for each in (source, out))
    assert torch.equal(want, got)


def rows(*words):
    *_, file = words
    done(*words)
    return [json.loads(row) for row in file.read_text().splitlines()]


def test_audit_names_the_plan_in_training_and_generation(lined, tmp_path):
    _, out, _, product = lined
    for name, words in {
        "train": ("--recipe", "fp8-current"),
        "generate": ("--as", "generate", "--dtype", "fp8"),
    }.items():
        found = rows("audit", "--model", out, *words, "--json", tmp_path / name)
        mine = [row for row in found if row["layer"] == product and row["op"].startswith("gemm")]
        assert mine and all(operand["format"] == "bf16" for row in mine for operand in row["operands"])
        others = [row for row in found if row["op"].startswith("gemm") and row["layer"] not in (product, "head")]
        assert others and all(any(operand["format"] == "e4m3" for operand in row["operands"]) for row in others)
        if name == "train":
            assert all("plan" in row["reason"] for row in mine)


def test_bits_do_not_depend_on_who_asks(lined, text, tmp_path):
    _, out, _, _ = lined
    files = []
    for how in ("train", "prefill", "decode", "serve"):
        files.append(tmp_path / how)
        words = ("--data", text, "--dtype", "fp8", "--context", 40, "--tokens", 120)
        done("logprobs", "--model", out, *words, "--as", how, "--json", files[-1])
    for other in files[1:]:
        done("logprobs", "--diff", files[0], other)


def test_finetuned_model_keeps_the_plan(lined, tmp_path):
    _, out, _, product = lined
    data = tmp_path / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": f"The number {i} comes before {i + 1}."}) + "\n" for i in range(12)))
    run, merged = tmp_path / "run", tmp_path / "whole"
    size = ("--steps", 2, "--batch", 2, "--context", 32, "--samples", 0)
    words = ("--full", "--recipe", "fp8-current", *size, "--audit", tmp_path / "audit")
    done("finetune", "--model", out, "--data", data, "--out", run, *words)
    mine = [row for row in map(json.loads, (tmp_path / "audit").read_text().splitlines()) if row["layer"] == product]
    products = [row for row in mine if row["op"].startswith("gemm")]
    assert {row["op"] for row in products} == {"gemm output", "gemm grad_input", "gemm grad_weight"}
    assert all(operand["format"] == "bf16" for row in products for operand in row["operands"])
    done("convert", "--model", run, "--out", merged)
    assert json.loads((merged / "config.json").read_text())["plimsoll_plan"] == {"high_precision": [product]}


def test_a_second_line_keeps_the_products_of_the_first(lined, text, tmp_path):
    _, out, found, product = lined
    stricter = found["formats"]["fp8 planned"]["logits_kl"] / 2
    result, again = line(out, text, tmp_path / "lined", *TEXT, "--max-kl", stricter)
    assert again["formats"]["fp8"]["logits_kl"] == found["formats"]["fp8 planned"]["logits_kl"]
    assert product not in {each["name"] for each in again["products"]}
    names = json.loads((tmp_path / "lined" / "config.json").read_text())["plimsoll_plan"]["high_precision"]
    assert names == again["plan"]["high_precision"] and names[0] == product and len(names) > 1
    expected = f"{len(names) - 1} of {len(again['products'])} products stay in BF16 beside 1 of the source's plan, "
    assert expected in result.stdout and escape(expected) in line_html("again", again)


def test_fp16_that_overflows_is_gauged(tokenizer, text, tmp_path):
    result, found = line(overflowing(tokenizer, tmp_path / "model"), text, tmp_path / "lined", *TEXT, "--max-kl", 100)
    assert result.returncode == 0, result.stdout + result.stderr
    assert not found["formats"]["fp16"]["finite"] and found["formats"]["fp16 gauged"]["finite"]
    assert found["gauge"] == {"certificate": "plimsoll_gauge.json"}
    assert json.loads((tmp_path / "lined" / "plimsoll_gauge.json").read_text())["fp32"]["bit_identical"]
    bits = [value["headroom_bits"] for value in found["values"] if value["headroom_bits"] is not None]
    assert bits == sorted(bits) and bits[0] < 0
    assert sorted(each.name for each in tmp_path.iterdir() if each.suffix != ".lock") == ["lined", "model"]


def test_errors_say_what_was_expected(lined, tokenizer, text, tmp_path):
    source, out, _, _ = lined
    short = tmp_path / "short.txt"
    short.write_text("too short")
    for words, code, expected in (
        (("--model", source, "--data", short, "--out", tmp_path / "a"), 1, "at least 2"),
        (("--model", tokenizer / "tokenizer.json", "--data", text, "--out", tmp_path / "a"), 2, "directory"),
        (("--model", source, "--data", text, "--out", out), 2, "expected a free name"),
        (("--model", source, "--data", text, "--out", tmp_path / "a", "--context", 10**6), 2, "--context"),
        (("--model", source, "--data", text, "--out", tmp_path / "a", "--max-kl", -1), 2, "--max-kl"),
    ):
        result = plimsoll("line", *words)
        assert (result.returncode, result.stdout) == (code, "") and expected in result.stderr, result.stdout + result.stderr
        assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "a").exists() and not (tmp_path / "a.partial").exists()


@pytest.mark.parametrize("plan", [{"high_precision": ["blocks.7.nothing"]}, {"high_precision": "all"}, ["blocks.0"]])
def test_plans_of_another_kind_are_one_clear_error(plan, lined, tmp_path):
    source, _, _, _ = lined
    folder = tmp_path / "model"
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "plimsoll_plan": plan}))
    result = plimsoll("generate", "--model", folder, "--prompt", "a", "--max-new-tokens", 1)
    assert result.returncode == 1 and "plan" in result.stderr and len(result.stderr.splitlines()) == 1, result.stderr


def test_report_draws_the_line(lined, tmp_path):
    import plimsoll as package

    _, out, _, product = lined
    page = package.report(out, tmp_path / "line.html").read_text()
    assert "how far it may be loaded" in page and product in page and "fp8 planned" in page
    (tmp_path / LINE).write_text(json.dumps({"max_kl": 1, "formats": {}}))
    with pytest.raises(ValueError, match="plimsoll line"):
        package.report(tmp_path, tmp_path / "other.html")
