"""torch.compile without a graph break gives the bits of eager modules, and the same scaling state."""

import copy
from typing import Any

import composition
import oracle
import plimsoll.pytorch as te
import pytest
import torch
from plimsoll.common import recipe

MODULES = {
    "Linear": lambda: te.Linear(16, 8),
    "Linear without bias": lambda: te.Linear(16, 8, bias=False),
    "split Linear": lambda: te.Linear(16, 8, parameters_split=("a", "b")),
    "LayerNorm": lambda: te.LayerNorm(16),
    "LayerNormLinear": lambda: te.LayerNormLinear(16, 8),
    "LayerNormMLP": lambda: te.LayerNormMLP(16, 24),
    "gated LayerNormMLP": lambda: te.LayerNormMLP(16, 24, activation="swiglu", normalization="RMSNorm"),
    "clamped LayerNormMLP": lambda: te.LayerNormMLP(16, 24, activation="clamped_swiglu", activation_params={"limit": 0.5}),
    "TransformerLayer": lambda: te.TransformerLayer(16, 24, 2, hidden_dropout=0.0, attention_dropout=0.0),
    "window": lambda: te.MultiheadAttention(16, 2, attention_dropout=0.0, window_size=(2, 0)),
    "decoder": lambda: te.TransformerLayer(16, 24, 2, hidden_dropout=0.0, attention_dropout=0.0, layer_type="decoder"),
}


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(3)
    torch._dynamo.reset()


def step(module, call, x, rule, **keywords):
    module.zero_grad()
    x = x.clone().requires_grad_()
    with te.fp8_autocast(enabled=rule is not None, fp8_recipe=rule):
        output = call(x, **keywords)
    output.square().sum().backward()
    return {
        "output": output.detach(),
        "input": x.grad,
        **{name: p.grad for name, p in module.named_parameters()},
        **{name: buffer.clone() for name, buffer in module.named_buffers()},
    }


def assert_same_steps(make, rules, backend="aot_eager"):
    eager = composition.randomize(make())
    traced = copy.deepcopy(eager)
    compiled = torch.compile(traced, fullgraph=True, backend=backend)
    for number, rule in enumerate(rules):
        x = torch.randn(5, 3, 16) * (number + 1)
        keywords = {"encoder_output": torch.randn(4, 3, 16)} if getattr(eager, "layer_type", "") == "decoder" else {}
        expected = step(eager, eager, x, rule, **keywords)
        ours = step(traced, compiled, x, rule, **keywords)
        assert expected.keys() == ours.keys()
        for name, value in expected.items():
            assert torch.equal(value, ours[name]), f"step {number}: {name}"


@pytest.mark.parametrize("name", MODULES)
def test_modules_under_delayed_scaling(name):
    assert_same_steps(MODULES[name], [recipe.DelayedScaling(amax_history_len=2)] * 3)


@pytest.mark.parametrize("name", [None, *oracle.RECIPES])
def test_recipes(name):
    assert_same_steps(MODULES["LayerNormMLP"], [oracle.RECIPES.get(name)] * 2)


def test_another_recipe_is_another_graph():
    assert_same_steps(
        MODULES["Linear"], [None, recipe.DelayedScaling(), recipe.MXFP8BlockScaling(), None, recipe.DelayedScaling()]
    )


def test_overrides_and_the_dtype_of_torch_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        assert_same_steps(MODULES["Linear"], [recipe.DelayedScaling(override_linear_precision=(True, False, False))] * 2)


class Between(torch.nn.Module):
    """Layers with elementwise work around them, whose memory a compiler uses again as soon as it may."""

    def __init__(self):
        super().__init__()
        self.mlp, self.linear = te.LayerNormMLP(16, 24), te.Linear(16, 16)

    def forward(self, x):
        x = x.abs() * 0.5
        hidden = self.mlp(x)
        wide = self.linear(hidden.abs() + 1) + x
        return self.linear((wide * 2).abs())


@pytest.mark.parametrize("rule", [None, recipe.DelayedScaling(amax_history_len=2)])
def test_the_default_compiler(rule):
    assert_same_steps(Between, [rule] * 2, backend="inductor")


def as_codes(make, form=None):
    def made():
        with te.quantized_model_init(recipe=form):
            return make()

    return made


@pytest.mark.parametrize("name", [name for name in MODULES if name != "LayerNorm"])
def test_weights_that_are_codes(name):
    assert_same_steps(as_codes(MODULES[name]), [recipe.DelayedScaling(amax_history_len=2)] * 2 + [None])


@pytest.mark.parametrize("name", oracle.RECIPES)
def test_weights_in_the_form_of_a_recipe(name):
    form = oracle.RECIPES[name]
    assert_same_steps(as_codes(MODULES["LayerNormMLP"], form), [form] * 2 + [recipe.Float8CurrentScaling()])


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_weights_that_are_codes_under_other_compilers(backend):
    form = recipe.MXFP8BlockScaling()
    assert_same_steps(as_codes(Between, form), [form] * 2, backend=backend)


@pytest.mark.parametrize("form", [None, recipe.DelayedScaling(amax_history_len=2)])
def test_a_graph_reads_the_codes_that_an_optimizer_has_written(form):
    eager = composition.randomize(as_codes(MODULES["LayerNormMLP"], form)())
    traced = copy.deepcopy(eager)
    compiled = torch.compile(traced, fullgraph=True, backend="aot_eager")
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.01) for module in (eager, traced)]
    for _ in range(3):
        x = torch.randn(5, 16)
        rule = form or recipe.Float8CurrentScaling()
        expected, ours = step(eager, eager, x, rule), step(traced, compiled, x, rule)
        before = eager.fc1_weight.dequantize()
        for optimizer in optimizers:
            optimizer.step()
        weights = [module.fc1_weight.dequantize() for module in (eager, traced)]
        assert torch.equal(*weights) and not torch.equal(weights[0], before) and before.isfinite().all()
        assert all(torch.equal(value, ours[name]) for name, value in expected.items())


def test_functions_of_torch_read_the_values_of_codes():
    weight: Any = as_codes(MODULES["Linear"])().weight
    x = torch.randn(3, 16, requires_grad=True)

    def function(x):
        return torch.nn.functional.linear(x, weight) * weight.exp().sum()

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    ours, expected = (torch.autograd.grad(one(x).sum(), (x, weight)) for one in (compiled, function))
    assert torch.equal(compiled(x), function(x))
    assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))


def test_backward_reads_what_forward_made():
    layer = te.Linear(16, 8)
    x = torch.randn(3, 16, requires_grad=True)
    rule = recipe.Float8CurrentScaling()
    with te.fp8_autocast(fp8_recipe=rule):
        expected = torch.autograd.grad(layer(x).sum(), x)[0]
        output = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    layer.weight.data.mul_(-3)
    assert torch.equal(torch.autograd.grad(output.sum(), x)[0], expected)


def test_a_module_used_twice_counts_once():
    layer: Any = te.Linear(16, 16)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def twice(x):
        return layer(layer(x))

    for number in (1, 2):
        with te.fp8_autocast(fp8_recipe=recipe.DelayedScaling()):
            output = twice(torch.randn(3, 16, requires_grad=True))
        output.sum().backward()
        assert layer.input_step.item() == layer.grad_output_step.item() == number


def test_no_grad_records_nothing():
    layer: Any = te.Linear(16, 8)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad(), te.fp8_autocast():
        assert torch.equal(compiled(torch.ones(2, 16)), layer(torch.ones(2, 16)))
    assert layer.input_step.item() == 0


def test_dropout_in_attention_is_refused():
    module = te.DotProductAttention(2, 4, attention_dropout=0.1)
    x = torch.randn(3, 1, 2, 4)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="attention_dropout=0.0 under torch.compile"):
        torch.compile(module, fullgraph=True, backend="eager")(x, x, x)


def test_modules_on_the_device_meta_answer_with_shapes():
    layer = te.LayerNormMLP(16, 24, device="meta")
    with te.fp8_autocast(fp8_recipe=recipe.DelayedScaling(high_precision_format="bf16")):
        output = layer(torch.empty(5, 16, device="meta"))
    assert output.is_meta and output.shape == (5, 16) and output.dtype == torch.bfloat16


def test_mistakes_are_named_while_tracing():
    layer = te.Linear(16, 8, device="meta")
    with pytest.raises(RuntimeError, match="expected x .* got .*4"):
        layer(torch.empty(2, 4, device="meta"))
    with pytest.raises(RuntimeError, match="expected x"):
        layer(torch.empty((), device="meta"))
