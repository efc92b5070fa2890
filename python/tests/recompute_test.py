"""Each way to make activations again has the bits of activations that are kept, under each kind of scope."""

import contextlib
import copy
from typing import Any

import plimsoll.pytorch as te
import pytest
import torch
from plimsoll import amp
from plimsoll.amp import recompute
from plimsoll.common import recipe
from plimsoll.shard import OffloadModel, checkpoint_wrapper
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

HALF, BFLOAT = torch.float16, torch.bfloat16


class Block(torch.nn.Module):
    """Operators that the precision table moves to FP32 between products in 16 bits, and a layer of FP8 scopes."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.layer = torch.nn.Linear(16, 16), torch.nn.LayerNorm(16), te.Linear(16, 16)

    def forward(self, x):
        x = self.norm(self.first(x)).exp().softmax(-1)
        return self.layer(x) * x.sum(-1, keepdim=True) + x.pow(2)


class Dropped(Block):
    """Draws random numbers after its layer has."""

    def forward(self, x):
        return torch.nn.functional.dropout(super().forward(x), 0.3)


def model(block=Block):
    torch.manual_seed(3)
    return torch.nn.Sequential(block(), block(), torch.nn.Linear(16, 4))


def kept(net):
    return net


def reentrant(net):
    return lambda x: net[2](checkpoint(net[1], checkpoint(net[0], x, use_reentrant=True), use_reentrant=True))


def not_reentrant(net):
    return lambda x: net[2](checkpoint(net[1], checkpoint(net[0], x, use_reentrant=False), use_reentrant=False))


def sequential(net):
    return lambda x: checkpoint_sequential(net, 3, x, use_reentrant=False)


def ours(net):
    return lambda x: net[2](te.checkpoint(net[1], te.checkpoint(net[0], x)))


def wrapped(net):
    checkpoint_wrapper(net[0]), checkpoint_wrapper(net[1], offload_to_cpu=True)
    return net


def offloaded(net):
    return OffloadModel(net, torch.device("cpu"), num_slices=2, checkpoint_activation=True)


WAYS = [reentrant, not_reentrant, sequential, ours, wrapped, offloaded]
FP8 = lambda: te.fp8_autocast(fp8_recipe=recipe.DelayedScaling(amax_history_len=2))
NVFP4 = lambda: te.fp8_autocast(fp8_recipe=recipe.NVFP4BlockScaling())
SCOPES = {
    "ours in fp16": lambda: amp.autocast("cpu", HALF),
    "ours in bf16": lambda: amp.autocast("cpu", BFLOAT),
    "torch's": lambda: torch.autocast("cpu", BFLOAT),
    "none": contextlib.nullcontext,
}


@contextlib.contextmanager
def both(one, other):
    with one(), other():
        yield


def steps(way, scope, outside=contextlib.nullcontext, inside=False, block=Block):
    """Gradients, scaling state and losses of three steps; `outside`: a scope around the backward pass."""
    net = model(block)
    run = way(net)
    seen = []
    for number in range(3):
        torch.manual_seed(number)
        x = torch.randn(5, 16).requires_grad_()
        with scope():
            loss = run(x).float().square().sum()
            if inside:
                loss.backward()
        if not inside:
            with outside():
                loss.backward()
        seen += [loss.detach(), x.grad]
        with torch.no_grad():
            for parameter in net.parameters():
                seen.append(parameter.grad.clone())
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
    return seen + [buffer.clone() for buffer in net.buffers()]


def assert_same(one, other):
    assert len(one) == len(other)
    for number, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        assert torch.equal(mine, theirs), f"number {number} of {len(one)}"


@pytest.mark.parametrize("inside", [False, True], ids=["backward outside", "backward inside"])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("way", WAYS)
def test_each_way_has_the_bits_of_activations_that_are_kept(way, scope, inside):
    assert_same(steps(way, SCOPES[scope], inside=inside), steps(kept, SCOPES[scope], inside=inside))


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("way", [not_reentrant, sequential, ours, wrapped, offloaded])
def test_fp8_scopes_inside_each_scope_have_them_too(way, scope):
    def combined():
        return both(SCOPES[scope], FP8)

    assert_same(steps(way, combined), steps(kept, combined))


@pytest.mark.parametrize("way", [not_reentrant, sequential, ours, wrapped, offloaded])
def test_rotations_and_roundings_of_four_bits_are_those_of_the_first_run(way):
    assert_same(steps(way, NVFP4, block=Dropped), steps(kept, NVFP4, block=Dropped))


@pytest.mark.parametrize("way", WAYS)
def test_a_scope_around_the_backward_pass_changes_nothing(way):
    expected = steps(kept, SCOPES["torch's"])
    assert_same(steps(way, SCOPES["torch's"], outside=SCOPES["ours in bf16"]), expected)
    expected = steps(kept, SCOPES["ours in bf16"])
    assert_same(steps(way, SCOPES["ours in bf16"], outside=SCOPES["torch's"]), expected)


class Scoped(torch.nn.Module):
    """A block that opens a scope of its own in the middle, of the dtype that torch's has around it."""

    def __init__(self, scope):
        super().__init__()
        self.before, self.block, self.scope = torch.nn.LayerNorm(16), Block(), scope

    def forward(self, x):
        x = self.before(x.to(BFLOAT)).softmax(-1)
        with self.scope():
            return self.block(x)


@pytest.mark.parametrize("scope", [SCOPES["ours in bf16"], FP8], ids=["ours", "fp8"])
@pytest.mark.parametrize("way", WAYS)
def test_a_scope_inside_the_function_does_not_begin_before_it(way, scope):
    def run(way):
        torch.manual_seed(5)
        net = torch.nn.Sequential(Scoped(scope), Scoped(scope), torch.nn.Linear(16, 4))
        x = torch.randn(5, 16).requires_grad_()
        for _ in range(2):
            with torch.autocast("cpu", BFLOAT):
                loss = way(net)(x).float().square().sum()
            loss.backward()
        return [x.grad, *(parameter.grad for parameter in net.parameters()), *net.buffers()]

    assert_same(run(way), run(kept))


def test_reentrant_checkpoints_of_fp8_layers_are_refused():
    with pytest.raises(RuntimeError, match="autocast scope of its first run.*plimsoll.pytorch.checkpoint"):
        steps(reentrant, FP8)


def test_torchs_implementation_is_called_through_ours():
    """Whoever had imported it before, and with the arguments that this torch gives it."""
    assert torch.utils.checkpoint.CheckpointFunction.forward is recompute._forward
    generator: Any = torch.utils.checkpoint._checkpoint_without_reentrant_generator
    assert generator is recompute._generator
    composable = pytest.importorskip("torch.distributed._composable.checkpoint_activation")
    assert composable._checkpoint_without_reentrant_generator is recompute._generator
    net = model()
    expected = copy.deepcopy(net)
    composable.checkpoint(net[0])
    for one in (net, expected):
        with amp.autocast("cpu", HALF):
            loss = one(torch.ones(2, 16)).float().sum()
        loss.backward()
    assert_same([p.grad for p in net.parameters()], [p.grad for p in expected.parameters()])
