"""Activation recompute has the bits of activations that are kept, and leaves the scaling state as one forward pass does."""

import copy
from typing import Any

import composition
import oracle
import plimsoll.pytorch as te
import pytest
import torch
from plimsoll.common import recipe
from torch.utils.checkpoint import checkpoint as torch_checkpoint

RECIPES: dict[Any, Any] = {**oracle.RECIPES, None: None}
X = (6, 3, 16)


def layer():
    torch.manual_seed(5)
    return composition.randomize(te.TransformerLayer(16, 32, 2, hidden_dropout=0.1, attention_dropout=0.1))


def plain(function, *args, **keywords):
    return function(*args, **keywords)


def checkpointed(function, *args, **keywords):
    return te.checkpoint(function, *args, **keywords)


def reentrant(function, *args, **keywords):
    return te.checkpoint(function, *args, use_reentrant=True, **keywords)


def not_reentrant(function, *args, **keywords):
    return te.checkpoint(function, *args, use_reentrant=False, **keywords)


def torchs(function, *args, **keywords):
    return torch_checkpoint(function, *args, use_reentrant=False, **keywords)


def with_contexts(function, *args, **keywords):
    return torch_checkpoint(function, *args, use_reentrant=False, context_fn=te.checkpoint_contexts, **keywords)


def steps(module, call, rule, count=3, backward_inside=False, function=None):
    """State that `count` training steps leave behind."""
    torch.manual_seed(11)
    seen: dict[Any, Any] = {}
    for number in range(count):
        x = (torch.randn(X) * (number + 1)).requires_grad_()
        with te.fp8_autocast(enabled=rule is not None, fp8_recipe=rule):
            output = call(function or module, x, **({} if function else {"is_first_microbatch": None}))
            if backward_inside:
                output.square().sum().backward()
        if not backward_inside:
            output.square().sum().backward()
        seen |= {f"output {number}": output.detach(), f"input {number}": x.grad}
    seen |= {f"gradient of {name}": parameter.grad for name, parameter in module.named_parameters()}
    return seen | {name: buffer.clone() for name, buffer in module.named_buffers()} | {"next": torch.randn(2)}


def assert_same(ours, expected):
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(ours[name], value), name


def assert_recompute_changes_nothing(call, rule, **keywords):
    module = layer()
    assert_same(steps(copy.deepcopy(module), call, rule, **keywords), steps(copy.deepcopy(module), plain, rule, **keywords))


@pytest.mark.parametrize("name", RECIPES)
def test_recipes(name):
    assert_recompute_changes_nothing(checkpointed, RECIPES[name])


@pytest.mark.parametrize("call", [reentrant, not_reentrant, torchs, with_contexts])
def test_each_spelling(call):
    assert_recompute_changes_nothing(call, recipe.DelayedScaling(amax_history_len=2))


def test_a_backward_pass_inside_the_scope():
    assert_recompute_changes_nothing(checkpointed, recipe.DelayedScaling(amax_history_len=2), backward_inside=True)


def test_torch_autocast_is_restored():
    with torch.autocast("cpu", torch.bfloat16):
        assert_recompute_changes_nothing(checkpointed, recipe.DelayedScaling(), backward_inside=True)


@pytest.mark.parametrize("outer", [None, recipe.DelayedScaling(amax_history_len=2)])
def test_scopes_inside_the_function(outer):
    module = layer()
    one, two = copy.deepcopy(module), copy.deepcopy(module)

    def within(layer):
        def function(x):
            with te.fp8_autocast(fp8_recipe=recipe.DelayedScaling(amax_history_len=3)):
                x = layer(x)
            with te.fp8_autocast(enabled=False):
                return layer(x)

        return function

    assert_same(steps(one, checkpointed, outer, function=within(one)), steps(two, plain, outer, function=within(two)))


def test_checkpoints_inside_checkpoints_and_layers_used_twice():
    module = layer()
    one, two = copy.deepcopy(module), copy.deepcopy(module)

    def nested(x):
        return te.checkpoint(one, te.checkpoint(one, x) + x)

    rule = recipe.DelayedScaling(amax_history_len=2)
    ours = steps(one, checkpointed, rule, function=nested)
    assert_same(ours, steps(two, plain, rule, function=lambda x: two(two(x) + x)))


def test_microbatches_use_the_codes_of_the_first():
    rule = recipe.DelayedScaling(amax_history_len=2)
    results = []
    for call in (plain, checkpointed):
        module = te.Linear(16, 16)
        with torch.no_grad():
            module.weight.copy_(torch.arange(256.0).view(16, 16).sin())
        torch.manual_seed(2)
        for first in (True, False, True, False):
            with te.fp8_autocast(fp8_recipe=rule):
                output = call(module, torch.randn(5, 16, requires_grad=True), is_first_microbatch=first)
            output.square().sum().backward()
        results.append({"gradient": module.weight.grad, **dict(module.named_buffers())})
    assert_same(*results)


def test_a_retained_graph_is_recomputed_each_time():
    module: Any = te.LayerNormLinear(16, 8)
    rule = recipe.DelayedScaling(amax_history_len=2)
    x = torch.randn(4, 16, requires_grad=True)
    for _ in range(2):
        with te.fp8_autocast(fp8_recipe=rule):
            output = te.checkpoint(module, x)
        loss = output.square().sum()
        loss.backward(retain_graph=True)
        assert x.grad is not None
        first = x.grad.clone()
        x.grad = None
        before: Any = module.input_step.item()
        loss.backward()
        assert module.input_step.item() == before
        assert x.grad is not None
        error = (x.grad - first).norm() / first.norm()
        assert error <= 2.0**-3  # the gradient's own scale follows between the passes; its E5M2 codes have 2 bits
        x.grad = None


def test_another_random_state_is_restored():
    class Tracker:
        def __init__(self):
            self.generator = torch.Generator().manual_seed(3)

        def get_states(self):
            return self.generator.get_state()

        def set_states(self, states):
            self.generator.set_state(states)

    tracker = Tracker()
    linear = torch.nn.Linear(4, 4)
    x = torch.randn(2, 4, requires_grad=True)
    kept = []

    def function(x):
        noise = torch.rand(2, 4, generator=tracker.generator)
        kept.append(noise)
        return linear(x * noise).square()

    te.checkpoint(function, x, get_rng_state_tracker=lambda: tracker).sum().backward()
    assert len(kept) == 2 and torch.equal(*kept)
    assert not torch.equal(torch.rand(2, 4, generator=tracker.generator), kept[0])


def test_activations_are_not_kept():
    module = te.LayerNormMLP(64, 256)
    x = torch.randn(32, 64, requires_grad=True)

    def bytes_of(call):
        seen = []

        def keep(tensor):
            seen.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), te.fp8_autocast():
            call(module, x)
        return sum(seen)

    assert bytes_of(checkpointed) <= x.nbytes
    assert bytes_of(plain) > 4 * x.nbytes


def test_torchs_reentrant_checkpoint_says_that_the_scope_is_gone():
    module = te.Linear(16, 8)
    x = torch.randn(4, 16, requires_grad=True)
    with te.fp8_autocast():
        output = torch_checkpoint(module, x, use_reentrant=True)
    with pytest.raises(RuntimeError, match="autocast scope of its first run.*plimsoll.pytorch.checkpoint"):
        output.sum().backward()
    torch_checkpoint(module, x, use_reentrant=True).sum().backward()  # no scope, none to miss


def test_a_second_run_that_differs_is_named():
    module, other = te.Linear(16, 16), te.Linear(16, 16)
    runs = []

    def function(x):
        runs.append(x)
        return (module if len(runs) == 1 else other)(x).square()

    with te.fp8_autocast():
        output = te.checkpoint(function, torch.randn(2, 16, requires_grad=True))
    with pytest.raises(RuntimeError, match="same layers in the same order"):
        output.sum().backward()


def test_arguments_of_transformer_engine():
    module, x = te.Linear(4, 4), torch.randn(2, 4, requires_grad=True)
    te.checkpoint(module, x, distribute_saved_activations=False, tp_group=None, get_rng_state_tracker=None).sum().backward()
    with pytest.raises(NotImplementedError, match="distribute_saved_activations"):
        te.checkpoint(module, x, distribute_saved_activations=True)
