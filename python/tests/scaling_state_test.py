"""Delayed scaling's state: when it updates, and that it travels with the module."""

import copy
import io
import pickle
from typing import Any

import plimsoll.pytorch as te
import pytest
import torch
from oracle import delayed_scale
from plimsoll.common.recipe import DelayedScaling, Float8CurrentScaling, Format

RULE = DelayedScaling(amax_history_len=4)


def forward(layer, x, rule=RULE):
    with te.fp8_autocast(fp8_recipe=rule):
        return layer(x)


def state_of(module):
    return {name: buffer.clone() for name, buffer in module.named_buffers()}


def assert_same(before, after):
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(value, after[name]), name


def layer_of(seed=0, **options):
    torch.manual_seed(seed)
    return te.Linear(4, 3, **options)


def scale_of(amax, code_format, rule=DelayedScaling()):  # noqa: B008  a value
    return delayed_scale(rule, torch.tensor(float(amax)), code_format).item()


def ones(amax):
    return torch.full((2, 4), float(amax))


def test_history_rolls_in_the_newest_and_the_scale_is_that_of_the_largest():
    layer = layer_of()
    for amax in (1.0, 3.0, 2.0):
        forward(layer, ones(amax))
    assert layer.input_amax_history.tolist() == [0, 1, 3, 2]
    assert layer.input_step.item() == 3
    assert layer.input_scale.item() == scale_of(3, "e4m3")
    for amax in (1.0, 1.0, 1.0):
        forward(layer, ones(amax))
    assert layer.input_amax_history.tolist() == [0, 1, 1, 1]
    assert layer.input_scale.item() == scale_of(2, "e4m3")  # the window still held it


def test_a_scale_written_through_data_holds_as_one_written_in_place():
    outputs = []
    for write in (lambda scale: scale.data.fill_(0.3), lambda scale: scale.fill_(0.3), lambda scale: None):
        layer = layer_of()
        with torch.no_grad():
            forward(layer, ones(2.0))  # there is none yet, and the host knows it
            write(layer.input_scale)
            outputs.append(forward(layer, torch.linspace(-7, 7, 8).reshape(2, 4)))
    through_data, in_place, unwritten = outputs
    assert torch.equal(through_data, in_place) and not torch.equal(in_place, unwritten)


def test_margin_interval_and_most_recent_are_honoured():
    layer = layer_of()
    rule = DelayedScaling(margin=2, interval=2, amax_history_len=4, amax_compute_algo="most_recent", fp8_format=Format.E4M3)
    scales = []
    for amax in (1.0, 8.0, 2.0, 2.0):
        forward(layer, ones(amax), rule)
        scales.append(layer.input_scale.item())
    expected = [scale_of(amax, "e4m3", rule) for amax in (1.0, 8.0, 8.0, 2.0)]
    assert scales == expected


def test_gradient_state_updates_when_the_backward_pass_ends():
    layer = layer_of()
    output = forward(layer, ones(1))
    assert layer.grad_output_step.item() == 0 and layer.input_step.item() == 1
    output.backward(torch.full_like(output, 5.0))
    assert layer.grad_output_step.item() == 1
    assert layer.grad_output_scale.item() == scale_of(5, "e5m2")


def test_several_uses_in_one_step_count_once_with_their_largest():
    layer = layer_of()
    with te.fp8_autocast(fp8_recipe=RULE):
        total = layer(ones(1)).sum() + layer(ones(7)).sum()
    total.backward()
    assert layer.input_amax_history.tolist() == [0, 0, 0, 7]
    assert layer.input_step.item() == 1 and layer.grad_output_step.item() == 1


def test_no_grad_records_nothing():
    layer = layer_of()
    forward(layer, ones(1)).sum().backward()
    before = state_of(layer)
    with torch.no_grad():
        forward(layer, ones(100))
    with torch.inference_mode():
        forward(layer, ones(100))
    assert_same(before, state_of(layer))


def test_a_scope_left_by_an_exception_updates_nothing():
    layer = layer_of()
    forward(layer, ones(1))
    before = state_of(layer)
    with pytest.raises(KeyError), te.fp8_autocast(fp8_recipe=RULE):
        layer(ones(100))
        raise KeyError("leaves the scope")
    assert_same(before, state_of(layer))
    forward(layer, ones(2))
    assert layer.input_amax_history.tolist() == [0, 0, 1, 2]


def test_inner_scopes_hold_inside_and_the_outermost_updates():
    layer, other = layer_of(), layer_of()
    wide = layer(ones(1))
    with te.fp8_autocast(fp8_recipe=RULE):
        with te.fp8_autocast(enabled=False):
            assert torch.equal(layer(ones(1)), wide)
        with te.fp8_autocast(fp8_recipe=DelayedScaling(amax_history_len=2)):
            other(ones(1))
        assert other.input_step.item() == 0
        layer(ones(1))
    assert layer.input_amax_history.numel() == 4 and other.input_amax_history.numel() == 2
    assert layer.input_step.item() == 1


def test_autocast_is_a_decorator_and_takes_both_spellings():
    layer = layer_of()

    @te.autocast(enabled=True, recipe=RULE)
    def step():
        return layer(ones(1))

    step()
    step()
    assert layer.input_step.item() == 2
    with te.fp8_autocast(True, False, RULE):
        layer(ones(1))
    assert layer.input_step.item() == 3


def test_values_that_are_not_finite_never_enter_a_history():
    layer = layer_of()
    forward(layer, ones(2))
    forward(layer, ones(float("inf")))
    assert layer.input_amax_history.tolist() == [0, 0, 2, 0]
    assert torch.isfinite(layer.input_scale).all()


def trained():
    layer = layer_of()
    for amax in (1, 3):
        forward(layer, ones(amax)).sum().backward()
    layer.zero_grad()
    return layer


def pickled(layer):
    return pickle.loads(pickle.dumps(layer))


def saved(layer):
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def loaded(layer):
    fresh = layer_of(1)
    fresh.load_state_dict(layer.state_dict())
    return fresh


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved, loaded])
def test_a_copy_goes_on_with_the_same_bits_and_its_own_state(copied):
    layer = trained()
    other = copied(layer)
    assert_same(state_of(layer), state_of(other))
    x = torch.randn(2, 4)
    before = state_of(layer)
    output = forward(other, x)
    assert_same(before, state_of(layer))
    assert torch.equal(output, forward(layer, x))
    assert_same(state_of(layer), state_of(other))


def test_state_stays_wide_when_the_module_is_narrowed():
    layer = trained()
    before = state_of(layer)
    layer.to(torch.bfloat16)
    assert layer.weight.dtype == torch.bfloat16
    assert_same(before, state_of(layer))
    forward(layer, ones(1).bfloat16())
    assert layer.input_step.item() == 3


def test_weights_of_torch_load_without_a_scaling_state():
    layer = layer_of()
    plain = torch.nn.Linear(4, 3)
    assert not layer.load_state_dict(plain.state_dict()).missing_keys
    assert torch.equal(layer.weight, plain.weight)


@pytest.mark.parametrize("make", [lambda: te.Linear(4, 3), lambda: te.LayerNormMLP(4, 8), lambda: te.GroupedLinear(2, 4, 3)])
def test_weights_that_come_without_a_state_have_the_bits_of_a_new_layer(make):
    torch.manual_seed(0)
    trained, fresh = make(), make()
    arguments = ([1, 1],) if isinstance(trained, te.GroupedLinear) else ()
    for amax in (1.0, 3.0):
        with te.fp8_autocast(fp8_recipe=RULE):
            y = trained(ones(amax), *arguments)
        y.sum().backward()
    large = {name: parameter * 64 for name, parameter in fresh.named_parameters()}
    outputs = []
    for layer in (trained, fresh):
        layer.load_state_dict(large, strict=False)
        assert all(not buffer.any() for buffer in layer.buffers())
        for gradients in (torch.no_grad(), torch.enable_grad()):
            with gradients, te.fp8_autocast(fp8_recipe=RULE):
                outputs.append(layer(ones(200.0), *arguments).detach())
    assert torch.equal(outputs[0], outputs[2]) and torch.equal(outputs[1], outputs[3])


def test_a_state_stays_where_no_weight_comes_and_where_one_comes_with_it():
    layer, other = layer_of(), layer_of(1)
    for each, amax in ((layer, 2.0), (other, 5.0)):
        forward(each, ones(amax)).sum().backward()
    before = state_of(layer)
    layer.load_state_dict({"bias": torch.ones(3)}, strict=False)
    assert_same(before, state_of(layer))
    part = {name: value for name, value in other.state_dict().items() if name in ("weight", "bias", "input_scale")}
    layer.load_state_dict(part, strict=False)
    assert layer.input_scale == other.input_scale and layer.weight_scale == before["weight_scale"]


@pytest.mark.parametrize("of", [lambda buffer: buffer, lambda buffer: buffer.data])  # data moves no version counter
def test_a_state_of_zeros_is_one_that_begins_anew(of):
    layer, fresh = layer_of(), layer_of()
    forward(layer, ones(1.0)).sum().backward()
    for buffer in layer.buffers():
        of(buffer).zero_()
    with torch.no_grad():
        for each in (layer, fresh):
            each.weight.mul_(64)
        assert torch.equal(forward(layer, ones(300.0)), forward(fresh, ones(300.0)))


def test_another_recipe_or_length_takes_effect_at_once_and_keeps_the_newest():
    layer = layer_of()
    for amax in (1.0, 3.0, 2.0):
        forward(layer, ones(amax))
    forward(layer, ones(5.0), Float8CurrentScaling())
    assert layer.input_amax_history.tolist() == [0, 1, 3, 2]
    forward(layer, ones(4.0), DelayedScaling(amax_history_len=3))
    assert layer.input_amax_history.tolist() == [0, 2, 4]


def test_a_meta_module_that_gets_memory_begins_with_no_state():
    torch.use_deterministic_algorithms(True)  # and fills what is not initialised with NaN
    try:
        layer: Any = te.Linear(4, 3, device="meta").to_empty(device="cpu")
    finally:
        torch.use_deterministic_algorithms(False)
    assert not any(buffer.any() for buffer in layer.buffers())


def test_meta_modules_materialise_with_fresh_state():
    layer: Any = te.Linear(4, 3, device="meta")
    assert layer.weight.is_meta and layer.input_scale.is_meta
    layer.reset_parameters()
    assert forward(layer, ones(1)).shape == (2, 3)
    assert layer.input_step.item() == 1
