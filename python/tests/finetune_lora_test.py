"""plimsoll finetune --lora on a small random Llama: PEFT's losses and files; runs that are stopped and go on; what is refused."""

import json
import re
import shutil

import peft
import pytest
import torch
from finetune_runs import (
    PLAN,
    QUICK,
    STEPS_OF_20,
    STOPS,
    done_by_two,
    examples_of_20_steps,
    expect_losses,
    losses,
    losses_of_transformers,
    refusal,
    same_sums,
    save_chats,
    save_model,
    stop_at_step_4,
    words_of,
)
from program import PROGRAM, done, plimsoll
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="bin/plimsoll is not built")

# Relative L2 of FP32 logits to those of FP64, as docs/decoders.md promises, of ours and of theirs.
LOGITS = 2e-6
WITHOUT_DROPOUT = "--lora=r=4,alpha=8,dropout=0"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return save_chats(tmp_path_factory.mktemp("data"))


def peft_model(model, adapter, **options):
    return peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), adapter, **options)


def test_losses_of_20_steps_are_those_of_peft(model, data, tmp_path):
    begin, out = tmp_path / "begin", tmp_path / "out"
    # One step at a rate that changes no bit of A leaves the adapters as they begin.
    done(*words_of(model, data, "--out", begin, WITHOUT_DROPOUT, "--steps=1", "--lr=1e-30", *QUICK))
    done(*words_of(model, data, "--out", out, WITHOUT_DROPOUT, "--lr=5e-2", *STEPS_OF_20, *QUICK))
    theirs = peft_model(model, begin, is_trainable=True)
    expect_losses(losses(out), losses_of_transformers(theirs, examples_of_20_steps(model, data, tmp_path), 5e-2), 0.96)


@pytest.fixture(scope="module")
def whole(model, data, tmp_path_factory):
    """A run with the defaults of --lora but for the rate, dropout among them."""
    out = tmp_path_factory.mktemp("whole") / "out"
    said = done(*words_of(model, data, "--out", out, *PLAN))
    assert re.search(r"^adapters   0\.0\d M parameters train$", said, re.MULTILINE), said
    return out


def test_peft_loads_the_adapter_with_the_same_logits_and_replies(model, whole, tmp_path):
    config = json.loads((whole / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (16, 32, 0.05)
    assert config["base_model_name_or_path"] == str(model)
    theirs, log = peft_model(model, whole).eval(), tmp_path / "generated.jsonl"
    words = ["--adapter", whole, "--chat", "--prompt=Hi", "--temperature=0", "--tokens=12", "--json", log]
    done("generate", "--model", model, *words)
    ours = [json.loads(line)["id"] for line in log.read_text().splitlines() if '"id"' in line]
    ids = AutoTokenizer.from_pretrained(model)("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", return_tensors="pt")
    with torch.inference_mode():
        replies = theirs.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids["input_ids"].shape[1] :].tolist()
        exactly = theirs.double()(**ids).logits
    assert ours == replies
    from plimsoll.models import AutoModelForCausalLM as Ours
    from plimsoll.models import PeftModel

    got = PeftModel.from_pretrained(Ours.from_pretrained(model), whole)(input_ids=ids["input_ids"]).logits
    assert ((got.double() - exactly).norm() / exactly.norm()).item() <= LOGITS


def checkpointed_names(out):
    manifest = json.loads(max(out.glob("step-*/manifest.json")).read_text())
    return {name: set(section) for name, section in manifest["tensors"].items()}


def test_checkpoints_hold_the_adapters_and_the_optimizer_alone(whole):
    names = checkpointed_names(whole)
    trained = {name for name in names["model"] if ".lora." in name or "_lora." in name}
    scaling = {name for name in names["model"] if name.endswith(("_scale", "_amax_history", "_step"))}
    assert trained and names["model"] == trained | scaling
    assert {name.rsplit(".", 1)[0] for name in names["optimizer"]} == trained


@pytest.mark.parametrize("kind", ["--base=stored", "--base=fp8", "--optimizer-state=8bit"])
@pytest.mark.parametrize("how", STOPS)
def test_a_run_that_is_stopped_goes_on_with_the_same_bits(model, data, whole, tmp_path, how, kind):
    out, words = tmp_path / "out", words_of(model, data, *PLAN, kind)
    if kind != "--base=stored":
        whole = tmp_path / "whole"
        done(*words, "--out", whole)
    words += ["--out", out]
    stop_at_step_4(words, out, how)
    assert not (out / "adapter_model.safetensors").exists()
    done(*words, "--resume")
    assert losses(out) == losses(whole)
    ours, theirs = (load_file(folder / "adapter_model.safetensors") for folder in (out, whole))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture(scope="module")
def alone(model, data, tmp_path_factory):
    """One process, without dropout, which each process draws on its own."""
    out = tmp_path_factory.mktemp("alone") / "out"
    done(*words_of(model, data, "--out", out, WITHOUT_DROPOUT, *PLAN))
    return out


@pytest.mark.parametrize("shard", ["ddp", "zero1", "zero2", "fsdp"])
def test_two_processes_have_the_losses_of_one(model, data, alone, tmp_path, shard):
    done_by_two(*words_of(model, data, "--out", tmp_path / "out", WITHOUT_DROPOUT, f"--shard={shard}", *PLAN))
    assert losses(tmp_path / "out") == same_sums(losses(alone))
    assert checkpointed_names(tmp_path / "out") == checkpointed_names(alone)
    ours, theirs = (load_file(folder / "adapter_model.safetensors") for folder in (tmp_path / "out", alone))
    assert ours.keys() == theirs.keys()


@pytest.mark.parametrize("base", ["fp8", "bf16"])
def test_bases_of_fewer_bits_train_alone_and_by_two(model, data, alone, tmp_path, base):
    words = words_of(model, data, WITHOUT_DROPOUT, f"--base={base}", *PLAN)
    done(*words, "--out", tmp_path / "one")
    done_by_two(*words, "--out", tmp_path / "two", "--shard=ddp")
    ours, exactly = losses(tmp_path / "one"), losses(alone)
    assert ours != exactly
    # E4M3 rounds a weight by up to 2^-4, BF16 by 2^-9; what it does to a loss is less.
    assert ours[0] == pytest.approx(exactly[0], rel={"fp8": 2**-4, "bf16": 2**-9}[base])
    assert losses(tmp_path / "two") == same_sums(ours)


def test_another_base_or_rank_does_not_resume(model, data, whole):
    for other, words in {
        "--base=fp8": 'adapters with base "fp8", got base "stored"',
        "--lora=r=8": "adapters with alpha 16.0, r 8, got alpha ",
        "--full": "a run of a whole model, got one of adapters",
        "--context=32": "the examples and rows of the run, which --data, --context, ",
    }.items():
        result = plimsoll(*words_of(model, data, "--out", whole, *PLAN, other, "--resume"))
        assert result.returncode == 2 and f"checkpoint: expected {words}" in result.stderr, result


def test_adapters_go_on_with_their_own_base_alone(model, data, whole, tmp_path):
    other = shutil.copytree(model, tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    next(iter(weights.values())).mul_(2)
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    result = plimsoll(*words_of(other, data, "--out", whole, *PLAN, "--resume"))
    assert result.returncode == 2 and "checkpoint: expected adapters with weights of the base " in result.stderr, result


@pytest.mark.parametrize("file", ["model.safetensors", "adapter_model.safetensors"])
def test_weights_of_others_are_not_replaced(model, data, tmp_path, file):
    out = tmp_path / "out"
    out.mkdir()
    (out / file).write_bytes(b"weights")
    result = plimsoll(*words_of(model, data, "--out", out, *QUICK))
    assert result.returncode == 2
    assert f"--out {out}: expected a directory without weights, which the run would replace, got {file}" in result.stderr
    assert (out / file).read_bytes() == b"weights"


def test_an_adapter_that_is_not_finite_is_refused(model, data, whole, tmp_path):
    broken = shutil.copytree(whole, tmp_path / "broken")
    weights = load_file(broken / "adapter_model.safetensors")
    name = next(iter(weights))
    weights[name][0, 0] = torch.nan
    save_file(weights, broken / "adapter_model.safetensors", {"format": "pt"})
    result = plimsoll("merge", "--model", model, "--adapter", broken, "--out", tmp_path / "merged")
    assert result.returncode == 1
    assert f"expected finite numbers in '{name}', got Inf or NaN" in result.stderr


def test_an_interrupted_run_has_no_adapter_yet(model, whole, tmp_path):
    part = shutil.copytree(whole, tmp_path / "part", ignore=shutil.ignore_patterns("adapter_*"))
    result = plimsoll("generate", "--model", model, "--adapter", part, "--prompt=Hi")
    assert result.returncode == 1
    assert (
        f"{part}: expected adapter_config.json, got a run without: one of adapters has it when finetune --resume has ended it"
        in result.stderr
    )


def test_a_run_of_adapters_is_no_model_of_its_own(whole):
    result = plimsoll("generate", "--model", whole, "--prompt=Hi")
    assert result.returncode == 2
    assert result.stderr == (
        f"plimsoll: {whole}: expected a run of a whole model, got one of adapters: type --model BASE --adapter RUN, after "
        "finetune --resume if it was interrupted\n"
    )


MISTAKES = {
    "--full --lora": "--full: expected it without --lora, got both",
    "--full --base=fp8": "--base fp8: expected --lora, which has a frozen base, got --full",
    "--masters=split": "--masters split: expected --full, got --lora, whose adapters train in fp32",
    "--release-gradients": "--release-gradients: expected --full, got --lora",
    "--base=fp8 --shard=fsdp": "--base fp8: expected --shard none, ddp, zero1 or zero2, got fsdp",
    "--base=fp8 --recipe=nvfp4": "--base fp8: expected a recipe of eight bits or more, got nvfp4",
    "--base=fp16": "--base: expected fp8, bf16 or stored, got 'fp16'",
    "--lora=16": "--lora: expected NAME=VALUE,..., got '16'",
    "--lora=r=": "--lora: expected NAME=VALUE,..., got 'r='",
    "--lora=r=0": "--lora r: expected an integer from 1 to 65536, got '0'",
    "--lora=r=4,r=5": "--lora: expected r once, got it twice",
    "--lora=r=4,5": "--lora: expected one r, got 4,5",
    "--lora=rank=4": "--lora: expected r, alpha, targets or dropout, got 'rank'",
    "--lora=alpha=0": "--lora alpha: expected a number from 1e-06 to 1000000",
    "--lora=dropout=1": "--lora dropout: expected a number from 0 to 0.99, got '1'",
    "--lora=targets=q_proj,c_attn": "--lora: expected targets among all-linear, down_proj, gate_proj",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_what_does_not_go_together_is_refused(model, data, tmp_path, words):
    assert MISTAKES[words] in refusal(tmp_path, *words_of(model, data, *words.split()))
