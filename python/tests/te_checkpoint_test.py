"""Checkpoints of Transformer Engine, and safetensors."""

import io
import os
import pickle
import sys
import types
from typing import Any

import plimsoll.pytorch as te
import pytest
import safetensors.torch
import torch
from plimsoll.common import recipe


class Planted:
    def __reduce__(self):
        return os.system, ("echo planted",)


@pytest.fixture
def their_recipe():
    """An object of a class of transformer_engine, which is not installed where the pickle is read."""
    names = ("transformer_engine", "transformer_engine.common", "transformer_engine.common.recipe")
    modules = {name: types.ModuleType(name) for name in names}

    class DelayedScaling:
        def __init__(self):
            self.margin = 0
            self.fp8_format = (448, 57344)

    DelayedScaling.__module__, DelayedScaling.__qualname__ = names[2], "DelayedScaling"
    vars(modules[names[2]])["DelayedScaling"] = DelayedScaling
    sys.modules |= modules
    return DelayedScaling()


def forget(their_recipe):
    for name in [name for name in sys.modules if name.split(".")[0] == "transformer_engine"]:
        del sys.modules[name]


def state(products, kinds=(3, 2), length=4):
    """As TransformerEngineBaseModule.get_extra_state makes it; kinds: tensors of a product forward and backward."""
    forward, backward = (products * kind for kind in kinds)
    history = torch.arange(1.0, length * forward + 1).view(length, forward)
    history[0] = 0
    return {
        "scale_fwd": torch.exp2(torch.arange(1.0, forward + 1)),
        "scale_inv_fwd": torch.exp2(-torch.arange(1.0, forward + 1)),
        "amax_history_fwd": history,
        "scale_bwd": torch.exp2(torch.arange(1.0, backward + 1) + 8),
        "scale_inv_bwd": torch.exp2(-torch.arange(1.0, backward + 1) - 8),
        "amax_history_bwd": 10 * torch.arange(1.0, length * backward + 1).view(length, backward),
        "extra_fp8_variables": {"num_gemms": products},
    }


def as_tensor(value):
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


def as_file(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file


def as_legacy_file(value):
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=False)
    return file


def load(module, extra, name=""):
    plain = {
        key: value
        for key, value in module.state_dict().items()
        if not key.split(".")[-1].endswith(("_scale", "_history", "_step"))
    }
    return module.load_state_dict({**plain, f"{name}_extra_state": extra})


@pytest.mark.parametrize("written", [as_tensor, as_file, as_legacy_file])
def test_scales_are_the_reciprocals_and_histories_the_same(written, their_recipe):
    theirs = state(1)
    extra = written({**theirs, "recipe": their_recipe})
    forget(their_recipe)
    layer = te.Linear(4, 3)
    load(layer, extra)
    for role, direction, column in (("input", "fwd", 0), ("weight", "fwd", 1), ("grad_output", "bwd", 0)):
        assert getattr(layer, f"{role}_scale").item() == 1 / theirs[f"scale_{direction}"][column].item()
        assert torch.equal(getattr(layer, f"{role}_amax_history"), theirs[f"amax_history_{direction}"][:, column])


@pytest.mark.parametrize("kinds", [(3, 2), (2, 1)])  # of later releases; of the first
def test_an_mlp_has_two_products(kinds):
    theirs = state(2, kinds)
    layer: Any = te.LayerNormMLP(4, 6)
    load(layer, as_tensor(theirs))
    assert layer.fc1_input_scale.item() == 1 / theirs["scale_fwd"][0].item()
    assert layer.fc2_weight_scale.item() == 1 / theirs["scale_fwd"][kinds[0] + 1].item()
    assert torch.equal(layer.fc2_grad_output_amax_history, theirs["amax_history_bwd"][:, kinds[1]])


def test_products_of_a_group_begin_anew_where_releases_differ_in_their_order():
    layer = te.GroupedLinear(2, 4, 3)
    for name in layer._state_names():
        layer.get_buffer(name).fill_(3)
    assert not load(layer, as_tensor(state(2))).unexpected_keys
    assert not any(layer.get_buffer(name).any() for name in layer._state_names())
    alone = te.GroupedLinear(1, 4, 3)
    load(alone, as_tensor(state(1)))
    assert alone.get_buffer("gemm0_weight_scale").item() == 1 / 4


def test_training_goes_on_from_their_scales():
    layer: Any = te.Linear(4, 3)
    load(layer, as_tensor(state(1)))
    rule = recipe.DelayedScaling(amax_history_len=4)
    x = torch.full((2, 4), 100.0)
    with te.fp8_autocast(fp8_recipe=rule):
        output = layer(x)
    weight = torch.ops.plimsoll.dequantize(
        torch.ops.plimsoll.quantize(layer.weight, torch.tensor([0.25]), "e4m3")[0],
        torch.tensor([[0.25]]),
        "e4m3",
        (0, 0),
        torch.float32,
    )
    # 100 at their scale 2 is 200, between the codes 192 and 208, and even is 192.
    assert torch.equal(output, torch.nn.functional.linear(torch.full((2, 4), 96.0), weight, layer.bias))
    assert layer.input_amax_history.tolist() == [0, 7, 10, 100]


def test_a_transformer_layer_as_it_is_saved_there():
    layer: Any = te.TransformerLayer(8, 16, 2)
    saved = {key: value for key, value in layer.state_dict().items() if not key.endswith(("_scale", "_history", "_step"))}
    saved["self_attention.layernorm_qkv._extra_state"] = as_tensor(state(1))
    saved["self_attention.proj._extra_state"] = as_file(state(1))
    saved["self_attention.core_attention._extra_state"] = torch.empty(0, dtype=torch.uint8)
    saved["self_attention.core_attention.fused_attention._extra_state"] = None
    saved["layernorm_mlp._extra_state"] = as_tensor(state(2))
    loaded = layer.load_state_dict(saved)
    assert not loaded.missing_keys and not loaded.unexpected_keys
    assert layer.layernorm_mlp.fc2_input_scale.item() == 2.0**-4


@pytest.mark.parametrize("extra", [None, torch.empty(0, dtype=torch.uint8), io.BytesIO(), as_tensor({"recipe": None})])
def test_a_state_without_scales_leaves_ours_as_it_is(extra):
    layer: Any = te.Linear(4, 3)
    layer.input_scale.fill_(0.5)
    load(layer, extra)
    assert layer.input_scale.item() == 0.5


def test_a_tensor_that_was_never_scaled_there_sets_its_own_first_scale():
    theirs = state(1)
    theirs["scale_fwd"][0] = 1
    theirs["amax_history_fwd"][:, 0] = 0
    layer: Any = te.Linear(4, 3)
    load(layer, as_tensor(theirs))
    assert layer.input_scale.item() == 0


@pytest.mark.parametrize("written", [as_tensor, as_file, as_legacy_file])
@pytest.mark.parametrize("value", [Planted(), {"scale_fwd": Planted()}, {"recipe": os.getcwd}, {"x": torch.nn.Linear(1, 1)}])
def test_nothing_of_a_pickle_runs(written, value, capfd):
    with pytest.raises(pickle.UnpicklingError, match="expected tensors alone, got"):
        load(te.Linear(4, 3), written(value))
    assert "planted" not in capfd.readouterr().out


def test_a_script_is_not_loaded():
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), file)
    with pytest.raises(pickle.UnpicklingError, match="TorchScript"):
        load(te.Linear(4, 3), file)


@pytest.mark.parametrize(
    "extra,error,message",
    [
        (3, TypeError, "_extra_state as bytes"),
        (as_tensor({"scale_fwd": torch.ones(3), "amax_history_fwd": torch.ones(4, 2)}), ValueError, r"got \[3\] and \[4, 2\]"),
    ],
)
def test_states_that_do_not_fit_are_named(extra, error, message):
    with pytest.raises(error, match=message):
        load(te.Linear(4, 3), extra)


def test_safetensors_hold_weights_and_scaling_state(tmp_path):
    layer = te.TransformerLayer(8, 16, 2, hidden_dropout=0.0, attention_dropout=0.0)
    rule = recipe.DelayedScaling(amax_history_len=3)
    x = torch.randn(3, 2, 8)
    for _ in range(2):
        with te.fp8_autocast(fp8_recipe=rule):
            output = layer(x)
        output.sum().backward()
    path = tmp_path / "layer.safetensors"
    safetensors.torch.save_model(layer, path)
    other = te.TransformerLayer(8, 16, 2, hidden_dropout=0.0, attention_dropout=0.0)
    assert not any(safetensors.torch.load_model(other, path))
    for (name, one), two in zip(layer.state_dict().items(), other.state_dict().values(), strict=False):
        assert torch.equal(one, two), name
    with te.fp8_autocast(fp8_recipe=rule):
        assert torch.equal(layer(x), other(x))
