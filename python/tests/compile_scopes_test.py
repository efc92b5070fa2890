"""torch.compile and scopes: opened inside the compiled function or outside of it, with the bits of eager mode."""

import contextlib
import copy
from typing import Any

import plimsoll.pytorch as te
import pytest
import torch
from plimsoll import amp
from plimsoll.amp.precision_switch import table_holds
from plimsoll.common import recipe
from rounding import gamma, within

HALF, BFLOAT = torch.float16, torch.bfloat16
DELAYED = recipe.DelayedScaling(amax_history_len=2)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    assert not torch.is_autocast_enabled("cpu") and not table_holds() and torch.is_autocast_cache_enabled()


class Body(torch.nn.Module):
    """Operators of each row of the precision table; torch's own autocast leaves softmax, exp and pow in 16 bits."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm, self.last = torch.nn.Linear(16, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)

    def compute(self, x):
        return self.last(self.norm(self.first(x)).exp().softmax(-1)).pow(2)

    def forward(self, x):
        return self.compute(x)


class With(Body):
    def forward(self, x):
        with amp.autocast("cpu", BFLOAT):
            return self.compute(x)


class Decorated(Body):
    @amp.autocast("cpu", HALF)
    def forward(self, x):
        return self.compute(x)


class Nested(Body):
    def forward(self, x):
        with amp.autocast("cpu", BFLOAT):
            y = self.compute(x)
            with amp.autocast("cpu", HALF, cache_enabled=False):
                y = y + self.compute(x)
            with amp.autocast("cpu", enabled=False):
                y = y.float() + self.compute(x)
            with torch.autocast("cpu", BFLOAT):
                return y * self.compute(x)


class InsideTorchs(Body):
    def forward(self, x):
        with torch.autocast("cpu", BFLOAT):
            y = x.to(BFLOAT).softmax(-1)
            with amp.autocast("cpu", BFLOAT):
                y = y + self.norm(y.softmax(-1))
            return y.to(BFLOAT).exp()


class Held(Body):
    """A scope that was made before, which torch.compile leaves to eager mode."""

    def __init__(self):
        super().__init__()
        self.scope = amp.autocast("cpu", HALF)

    def forward(self, x):
        with self.scope:
            return self.compute(x)


def step(call, module, x, scope=contextlib.nullcontext):
    x = x.clone().requires_grad_()
    module.zero_grad()
    with scope():
        output = call(x)
    output.float().square().sum().backward()
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    return [output.detach(), x.grad, *gradients, *(buffer.clone() for buffer in module.buffers())]


def assert_same(one, other):
    assert len(one) == len(other)
    for mine, theirs in zip(one, other, strict=True):
        assert mine.dtype == theirs.dtype and torch.equal(mine, theirs)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("kind", [With, Decorated, Nested, InsideTorchs])
def test_a_scope_inside_compiles_without_a_graph_break(kind, backend):
    module = kind()
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    for _number in range(2):
        x = torch.randn(5, 16)
        assert_same(step(compiled, module, x), step(module, module, x))


def test_the_default_compiler_sees_the_precision_table():
    module = With()
    x = torch.randn(5, 16)
    ours, expected = step(torch.compile(module, fullgraph=True), module, x), step(module, module, x)
    assert [tensor.dtype for tensor in ours] == [tensor.dtype for tensor in expected] and ours[0].dtype == torch.float32
    for mine, theirs in zip(ours, expected, strict=True):  # it keeps some 16-bit values wider: 16 roundings on the way at most
        bound = gamma(16, torch.bfloat16) * theirs.abs() + gamma(4, torch.bfloat16) * theirs.abs().max()
        assert within(mine, theirs, bound)


def test_a_scope_that_was_made_before_is_a_graph_break():
    module = Held()
    x = torch.randn(5, 16)
    assert_same(step(torch.compile(module, backend="aot_eager"), module, x), step(module, module, x))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(module, fullgraph=True, backend="eager")(x)


SCOPES: dict[str, Any] = {
    "none": contextlib.nullcontext,
    "torch's bf16": lambda: torch.autocast("cpu", BFLOAT),
    "ours in bf16": lambda: amp.autocast("cpu", BFLOAT),
    "ours in fp16": lambda: amp.autocast("cpu", HALF),
    "torch's fp16": lambda: torch.autocast("cpu", HALF),
}


@pytest.mark.parametrize("order", [list(SCOPES), list(SCOPES)[::-1]], ids=["one way", "the other"])
def test_a_scope_outside_is_another_graph(order):
    module = Body()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for name in order * 2:
        x = torch.randn(5, 16)
        assert_same(step(compiled, module, x, SCOPES[name]), step(module, module, x, SCOPES[name]))


class Fp8(torch.nn.Module):
    def __init__(self, held=False):
        super().__init__()
        torch.manual_seed(3)
        self.layer, self.last = te.LayerNormMLP(16, 24), torch.nn.Linear(16, 4)
        self.scope = te.fp8_autocast(fp8_recipe=DELAYED) if held else None

    def forward(self, x):
        x = x.abs() + 1
        with self.scope or te.fp8_autocast(fp8_recipe=DELAYED):
            x = self.layer(x * 2)
        return self.last(x).exp()


@pytest.mark.parametrize("held", [False, True])
def test_an_fp8_scope_inside_is_a_graph_break(held):
    module = Fp8(held)
    twin = copy.deepcopy(module)
    compiled = torch.compile(twin, backend="aot_eager")
    for number in range(3):
        x = torch.randn(5, 16) * (number + 1)
        assert_same(step(compiled, twin, x), step(module, module, x))
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(twin, fullgraph=True, backend="eager")(x)


@pytest.mark.parametrize("scope", SCOPES)
def test_an_fp8_scope_outside_inside_another(scope):
    @contextlib.contextmanager
    def both():
        with SCOPES[scope](), te.fp8_autocast(fp8_recipe=DELAYED):
            yield

    class Layers(Body):
        def __init__(self):
            super().__init__()
            self.layer = te.Linear(16, 16)

        def forward(self, x):
            return self.compute(self.layer(x).float())

    module = Layers()
    twin = copy.deepcopy(module)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    for number in range(3):
        x = torch.randn(5, 16) * (number + 1)
        assert_same(step(compiled, twin, x, both), step(module, module, x, both))


def test_checkpoints_in_a_compiled_function():
    class Checkpointed(Body):
        def forward(self, x):
            with amp.autocast("cpu", BFLOAT):
                return torch.utils.checkpoint.checkpoint(self.compute, x, use_reentrant=False)

    module = Checkpointed()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(5, 16)
    assert_same(step(compiled, module, x), step(module, module, x))
