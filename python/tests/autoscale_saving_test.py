"""Files of autoscaled modules for others: transformers' save_pretrained(), pickle; and steps that a loss scale skips."""

import copy
import gc
import io
import pickle
import warnings
import weakref
from typing import Any

import pytest
import torch
from plimsoll import autoscale
from safetensors.torch import load_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

IDS = torch.randint(3, 90, (2, 8), generator=torch.Generator().manual_seed(0))


def llama(tied: bool) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=90, num_key_value_heads=1, tie_word_embeddings=tied, **sizes))


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_transformers_saves_and_reads_the_values(tmp_path, tied, given, copied):
    model = autoscale.autoscale(llama(tied))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        model(input_ids=IDS, labels=IDS).loss.backward()
        optimizer.step()
    if copied:
        original, model = model, copy.deepcopy(model)
        with torch.no_grad():
            original.lm_head.weight.zero_()
    values = {name: autoscale.value(parameter).clone() for name, parameter in model.named_parameters()}
    model.save_pretrained(tmp_path, **({"state_dict": model.state_dict()} if given else {}))
    saved = load_file(tmp_path / "model.safetensors")
    assert saved.keys() == values.keys()
    assert all(torch.equal(saved[name], values[name]) for name in values)
    again = LlamaForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(parameter, values[name]) for name, parameter in again.named_parameters())
    assert "model.layers.0.mlp.up_proj.weight.scale" in model.state_dict(), "which keeps the bits"


def test_a_module_ends_with_its_last_reference():
    model = autoscale.autoscale(llama(tied=False), policy="dynamic_loss_scale")
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("save", [pickle.dumps, lambda module: torch.save(module, io.BytesIO())])
def test_a_module_is_not_pickled(save):
    module = autoscale.autoscale(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
    with pytest.raises(TypeError, match=r"autoscale: expected module.state_dict\(\) in torch.save or pickle"):
        save(module)
    assert autoscale.is_scaled(copy.deepcopy(module)(torch.ones(1, 2)))


def test_steps_that_are_skipped_are_counted_and_many_in_a_row_warn_once():
    layer: Any = autoscale.autoscale(nn.Linear(1, 1, bias=False), policy="dynamic_loss_scale")
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)

    def step(x: float) -> None:
        optimizer.zero_grad()
        layer(torch.full((1, 1), x)).sum().backward()
        optimizer.step()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in [torch.inf] * 19 + [1.0] + [torch.inf] * 19:
            step(x)
    with pytest.warns(UserWarning, match="20 steps in a row had gradients that were not finite"):
        step(torch.inf)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(30):
            step(torch.inf)
    report = autoscale.report(layer, clear=True)
    assert report.skipped_steps == 69 and "69 steps skipped" in str(report)
    assert autoscale.report(layer).skipped_steps == 0 and "skipped" not in str(autoscale.report(layer))


@pytest.mark.parametrize("matmul_format", [None, "hybrid"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_state_dict_gives_the_same_bits(nested, matmul_format):
    def made(seed: int) -> Any:
        torch.manual_seed(seed)
        layers = autoscale.autoscale(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)), matmul_format=matmul_format)
        return nn.Sequential(layers) if nested else layers

    model, again = made(0), made(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
    state = model.state_dict()
    prefix = "0." if nested else ""
    name = f"{prefix}0.weight"
    # 1 + 2^-11 as 1 and half a last place more, and as the next number and half a place less; remainders are times 2^11.
    state[name][0, :2] = torch.tensor([1.0, 1 + 2.0**-10])
    state[f"{name}.remainder"][0, :2] = torch.tensor([1.0, -1.0])
    expected = copy.deepcopy(state)
    again.load_state_dict(state)
    got = again.state_dict()
    assert got.keys() == expected.keys()
    assert [key for key in got if not torch.equal(got[key], expected[key])] == []
    x = torch.randn(3, 64)
    model.load_state_dict(copy.deepcopy(expected))
    assert torch.equal(autoscale.value(model(x)), autoscale.value(again(x)))
