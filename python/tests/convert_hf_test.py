"""plimsoll.convert on Hugging Face models, built from configurations with random weights."""

import copy
import os
import pathlib
import subprocess
import sys

import composition
import plimsoll
import plimsoll.pytorch as te
import pytest
import torch
from plimsoll.common import recipe

transformers = pytest.importorskip("transformers")
ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZES = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}

# The model; how many modules are converted; and those kept that are not embeddings.
MODELS = {
    "bert": (
        lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, max_position_embeddings=16)),
        6 + 1,
        ["cls.predictions.decoder"],
    ),
    "gpt2": (
        lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=40, n_embd=32, n_layer=1, n_head=2, n_positions=16)
        ),
        4,
        ["lm_head"],
    ),
    "llama": (lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, num_key_value_heads=1)), 7 + 1, []),
    "t5": (
        lambda: transformers.T5ForConditionalGeneration(
            transformers.T5Config(
                vocab_size=40,
                d_model=32,
                d_kv=16,
                d_ff=48,
                num_layers=1,
                num_heads=2,
                feed_forward_proj="gated-gelu",
                decoder_start_token_id=0,
            )
        ),
        7 + 11,
        ["lm_head"],
    ),
}


def loss_of(model):
    tokens = torch.arange(24).reshape(2, 12) * 7 % 40
    return model(input_ids=tokens, labels=tokens).loss


def gradients(model):
    model.zero_grad()
    loss_of(model).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    torch.manual_seed(3)
    make, count, heads = MODELS[name]
    model = make().eval()
    plain = copy.deepcopy(model)
    report = plimsoll.convert(model)
    assert len(report.converted) == count
    assert [entry.path for entry in report.kept if entry.kind != "Embedding"] == heads
    composition.assert_close(loss_of(model).detach(), loss_of(plain).detach().double(), "loss")
    exact, theirs, ours = gradients(copy.deepcopy(plain).double()), gradients(plain), gradients(model)
    largest = max(grad.norm() for grad in exact.values())
    for path, grad in exact.items():
        allowed = composition.FP32 * grad.norm() + 4 * (theirs[path].double() - grad).norm() + 2.0**-22 * largest
        assert (ours[path].double() - grad).norm() <= allowed, path

    high_precision = loss_of(model)
    plimsoll.convert(model, recipe=recipe.DelayedScaling())
    fp8 = loss_of(model)
    assert not torch.equal(fp8, high_precision)
    assert abs(fp8.item() / high_precision.item() - 1) < 2.0**-4  # one E4M3 rounding
    tokens = model.generate(torch.ones(1, 3, dtype=torch.long), max_new_tokens=3, do_sample=False) if name != "bert" else None
    assert tokens is None or tokens.shape[0] == 1
    plimsoll.convert_back(model)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert torch.equal(loss_of(model), loss_of(plain))


def test_a_converted_model_saves_and_loads_as_its_class(tmp_path):
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES, max_position_embeddings=16)).eval()
    plimsoll.convert(model, recipe=recipe.Float8CurrentScaling())
    model.save_pretrained(tmp_path)
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path).eval()
    assert again.config.architectures == ["BertForSequenceClassification"]
    plimsoll.convert_back(model)
    tokens = torch.arange(8).reshape(1, 8)
    assert torch.equal(again(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("arguments", [{}, {"context_fn": te.checkpoint_contexts}], ids=["torch's", "ours"])
def test_gradient_checkpointing_has_the_same_bits(arguments):
    configuration = transformers.BertConfig(**SIZES, max_position_embeddings=16)
    model = transformers.BertForSequenceClassification(configuration)
    plimsoll.convert(model, recipe=recipe.DelayedScaling(amax_history_len=4))
    kept = copy.deepcopy(model)
    model.gradient_checkpointing_enable({"use_reentrant": False, **arguments})
    for _ in range(2):
        for each in (model, kept):
            torch.manual_seed(1)
            each(torch.arange(16).reshape(2, 8), labels=torch.tensor([0, 1])).loss.backward()
    for (name, mine), (_, other) in zip(model.named_parameters(), kept.named_parameters(), strict=True):
        assert torch.equal(mine.grad, other.grad), name
    for (name, mine), (_, other) in zip(model.named_buffers(), kept.named_buffers(), strict=True):
        assert torch.equal(mine, other), name


def test_the_example_trains_in_fp8_as_in_fp32():
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "convert_hf_bert.py", "--steps", "4"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "converted 14" in done.stdout and "loss over the last third" in done.stdout
