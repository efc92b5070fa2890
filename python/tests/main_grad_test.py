"""fuse_wgrad_accumulation: the gradients of weights go to main_grad, bit for bit what adding them there would give."""

import copy
from typing import Any

import plimsoll.pytorch as te
import pytest
import torch
from plimsoll.common import recipe

MODULES = {
    "Linear": lambda **keywords: te.Linear(24, 40, **keywords),
    "split Linear": lambda **keywords: te.Linear(24, 40, parameters_split={"a": 8, "b": 32}, **keywords),
    "LayerNormLinear": lambda **keywords: te.LayerNormLinear(24, 40, **keywords),
    "LayerNormMLP": lambda **keywords: te.LayerNormMLP(24, 40, **keywords),
    "gated LayerNormMLP": lambda **keywords: te.LayerNormMLP(24, 40, activation="geglu", **keywords),
    "TransformerLayer": lambda **keywords: te.TransformerLayer(24, 40, 2, hidden_dropout=0.0, attention_dropout=0.0, **keywords),
}
RULES = {None: None, "delayed": recipe.DelayedScaling(amax_history_len=2), "mxfp8": recipe.MXFP8BlockScaling()}


def weights_of(module):
    return {name: p for name, p in module.named_parameters() if p.dim() == 2}


def pair(name, dtype=torch.float32):
    torch.manual_seed(6)
    fused = MODULES[name](fuse_wgrad_accumulation=True, params_dtype=dtype)
    apart = MODULES[name](params_dtype=dtype)
    apart.load_state_dict(fused.state_dict())
    for weight in weights_of(fused).values():
        weight.main_grad = torch.randn(weight.shape)
        weight.grad_added_to_main_grad = False
    return fused, apart


def accumulate(fused, apart, rule, dtype=torch.float32, **keywords):
    """Three microbatches; returns what separate accumulation leaves."""
    sums = {name: weight.main_grad.clone() for name, weight in weights_of(fused).items()}
    for _ in range(3):
        x = torch.randn(7, 3, 24, dtype=dtype)
        for module in (fused, apart):
            with te.fp8_autocast(enabled=rule is not None, fp8_recipe=rule):
                output = module(x, **keywords)
            output.float().square().sum().backward()
        for name, weight in weights_of(apart).items():
            sums[name] += weight.grad
            weight.grad = None
    return sums


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("rule", RULES)
def test_bits_are_those_of_separate_accumulation(name, rule):
    fused, apart = pair(name)
    sums = accumulate(fused, apart, RULES[rule])
    for name, weight in weights_of(fused).items():
        assert torch.equal(weight.main_grad, sums[name]), name
        assert weight.grad is None and weight.grad_added_to_main_grad is True
    others = dict(apart.named_parameters())
    for name, parameter in fused.named_parameters():
        if parameter.dim() == 1:
            assert torch.equal(parameter.grad, others[name].grad), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("rule", RULES)
def test_a_narrow_main_grad_holds_each_sum_rounded_once(name, rule, dtype):
    fused, apart = pair(name)
    for weight in weights_of(fused).values():
        weight.main_grad = weight.main_grad.to(dtype)
    sums = accumulate(fused, apart, RULES[rule])
    for name, weight in weights_of(fused).items():
        assert weight.main_grad.dtype == dtype and torch.equal(weight.main_grad, sums[name]), name


def test_the_first_microbatch_overwrites_a_narrow_main_grad():
    fused, apart = pair("Linear")
    fused.weight.main_grad = torch.full(fused.weight.shape, torch.nan, dtype=torch.bfloat16)
    x = torch.randn(5, 24)
    for module in (fused, apart):
        module(x, is_first_microbatch=True).square().sum().backward()
    assert torch.equal(fused.weight.main_grad, apart.weight.grad.bfloat16())


def test_gradients_of_narrow_weights_are_not_rounded():
    fused, apart = pair("Linear", torch.bfloat16)
    before = fused.weight.main_grad.clone()
    accumulate(fused, apart, RULES["delayed"], torch.bfloat16)
    assert fused.weight.main_grad.dtype == torch.float32
    added = fused.weight.main_grad - before
    assert not torch.equal(added, added.bfloat16().float())


def test_the_first_microbatch_overwrites():
    for name in ("Linear", "split Linear"):
        fused, apart = pair(name)
        x = torch.randn(5, 24)
        for first in (True, False):
            for module in (fused, apart):
                with te.fp8_autocast(fp8_recipe=RULES["delayed"]):
                    module(x, is_first_microbatch=first).square().sum().backward()
        for name, weight in weights_of(fused).items():
            assert torch.equal(weight.main_grad, dict(apart.named_parameters())[name].grad), name


def test_weights_that_are_codes():
    torch.manual_seed(6)
    with te.fp8_model_init():
        fused: Any = te.Linear(24, 40, fuse_wgrad_accumulation=True)
    apart = copy.deepcopy(fused)
    apart.fuse_wgrad_accumulation = False
    fused.weight.main_grad = torch.zeros(40, 24)
    sums = accumulate(fused, apart, RULES["delayed"])
    assert torch.equal(fused.weight.main_grad, sums["weight"])


def test_recompute_adds_once():
    fused, apart = pair("LayerNormMLP")
    fused.fc1_weight.main_grad.zero_()
    x = torch.randn(5, 24, requires_grad=True)
    with te.fp8_autocast(fp8_recipe=RULES["delayed"]):
        te.checkpoint(fused, x).sum().backward()
        apart(x).sum().backward()
    assert torch.equal(fused.fc1_weight.main_grad, apart.fc1_weight.grad)


def test_torch_compile_is_refused_by_name():
    fused, _ = pair("Linear")
    with pytest.raises(torch._dynamo.exc.Unsupported, match="fuse_wgrad_accumulation=False under torch.compile"):
        torch.compile(fused, fullgraph=True, backend="eager")(torch.randn(2, 24))


def test_no_tokens_add_nothing_and_no_grad_asks_for_nothing():
    fused, _ = pair("Linear")
    before = fused.weight.main_grad.clone()
    fused(torch.zeros(0, 24)).sum().backward()
    assert torch.equal(fused.weight.main_grad, before)
    del fused.weight.main_grad
    with torch.no_grad():
        fused(torch.randn(2, 24))


@pytest.mark.parametrize(
    "main_grad", [None, torch.zeros(40, 24, dtype=torch.float64), torch.zeros(3, 3), torch.zeros(24, 40).t()]
)
def test_a_main_grad_that_does_not_fit_is_named(main_grad):
    fused: Any = te.Linear(24, 40, fuse_wgrad_accumulation=True)
    if main_grad is not None:
        fused.weight.main_grad = main_grad
    with pytest.raises(RuntimeError, match="main_grad"):
        fused(torch.randn(2, 24))
