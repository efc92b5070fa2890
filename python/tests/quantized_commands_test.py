"""Commands on directories whose matrices are codes."""

import json

import coded_files
import finetune_runs
import pytest
import tiny_llama
import tokenizer_texts
from plimsoll.models import AutoModelForCausalLM
from plimsoll.serve import Engine
from program import done, plimsoll, refused
from served import serving


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    """A model with a tokenizer, whose matrices have columns in multiples of 32."""
    directory = tmp_path_factory.mktemp("chatty")
    template = finetune_runs.TEMPLATES["chatml"]
    specials = ("<|im_start|>", "<|im_end|>")
    return tiny_llama.write(
        directory, "<|im_end|>", specials, template, hidden_size=96, intermediate_size=160, head_dim=16, initializer_range=0.1
    )


@pytest.fixture(scope="module", params=coded_files.FORMATS)
def chatty_codes(request, chatty, tmp_path_factory):
    out = tmp_path_factory.mktemp("codes") / "out"
    done("quantize", "--model", chatty, "--out", out, "--format", request.param)
    return out, request.param


def generated(model, log, *options):
    done("generate", "--model", model, "--prompt", "def read", "--tokens", 12, "--json", log, *options)
    return [json.loads(line).get("log_probability") for line in log.read_text().splitlines()]


def test_texts_are_those_of_codes_that_are_made_at_load(chatty, chatty_codes, tmp_path):
    codes, format = chatty_codes
    read = generated(codes, tmp_path / "read", "--dtype", "bf16")
    assert len(read) > 2
    if coded_files.FORMATS[format]:
        assert generated(chatty, tmp_path / "made", "--dtype", coded_files.FORMATS[format]) == read
    with serving(codes, "--dtype", "bf16") as server:
        reply = server.client.completions.create(model="any", prompt="def read", max_tokens=12, temperature=0, logprobs=1)
        assert reply.choices[0].logprobs.token_logprobs == [value for value in read if value is not None]
        assert server.stop() == 0


def test_each_command_takes_a_directory_of_codes(chatty_codes, tmp_path):
    codes, format = chatty_codes
    text = tmp_path / "text.txt"
    text.write_text(tokenizer_texts.python_source()[:4000])
    words = ["--model", codes, "--data", text, "--context", 64, "--tokens", 200]
    done("parity", *words, "--json", tmp_path / "parity")
    figures = json.loads((tmp_path / "parity").read_text())["dtypes"]
    assert figures.keys() == {"fp32", "bf16", "fp16"}
    assert figures["fp32"]["logits_kl"] == 0 and 0 < figures["bf16"]["logits_kl"] < 0.1
    assert figures["bf16"]["bytes_per_weight"] < 2
    done("logprobs", *words, "--json", tmp_path / "logprobs", "--dtype", "fp32")
    assert ("weight_packed" if "fp4" in format else " FP8 ") in done("inspect", codes)
    done("audit", "--model", codes, "--as", "generate", "--tokens", 4)
    with Engine(codes) as engine:
        assert len(list(engine.submit("def read", max_tokens=3))) == 3


def test_adapters_train_on_codes(chatty_codes, tmp_path):
    codes, _ = chatty_codes
    data = finetune_runs.write_lines(tmp_path / "data.jsonl", finetune_runs.chats(12))
    out = tmp_path / "out"
    words = [*finetune_runs.words_of(codes, data, *finetune_runs.PLAN), "--eval-share=0", "--lora", "--out", out]
    done(*words, "--recipe=bf16", "--base", "stored", "--samples=1")
    losses = finetune_runs.losses(out)
    assert losses[-1] < losses[0]
    with_adapter = generated(codes, tmp_path / "with", "--adapter", out)
    assert with_adapter != generated(codes, tmp_path / "without")


def test_work_on_values_refuses_codes(chatty_codes, tmp_path):
    codes, format = chatty_codes
    expected = "quantization_config: expected weights that are values, got codes"
    out = tmp_path / "out"
    assert expected in refused("quantize", "--model", codes, "--out", out, "--format", "fp8")
    assert expected in refused("gauge", "--model", codes, "--out", out)
    text = tmp_path / "text"
    text.write_text("def read\n" * 400)
    assert expected in refused("train", "--model", codes, "--data", text, "--out", out, "--steps", 1, "--batch", 1)
    full = plimsoll("finetune", "--model", codes, "--data", text, "--out", out, "--full")
    assert full.returncode == 2 and full.stdout == "", full  # before anything is planned
    assert f"--full: expected weights that are values, got codes in {codes}; `plimsoll convert" in full.stderr
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    assert expected in refused("merge", "--model", codes, "--adapter", adapter, "--out", out)
    assert "as the dtype of weights that are codes, got fp8" in refused(
        "generate", "--model", codes, "--prompt", "a", "--dtype", "fp8"
    )
    assert not out.exists()
    with pytest.raises(ValueError, match="expected weights that are values, got codes"):
        AutoModelForCausalLM.from_pretrained(codes)
