"""plimsoll.watch on the codes of te's layers."""

import math
from typing import Any

import plimsoll
import plimsoll.pytorch as te
import pytest
import torch
from plimsoll.common import recipe

RULES = [
    recipe.Float8CurrentScaling(),
    recipe.Float8BlockScaling(),
    recipe.MXFP8BlockScaling(),
    recipe.NVFP4BlockScaling(),
]


def record_of(w: Any, name: str) -> dict[str, Any]:
    return next(record for record in w.records if record["name"] == name)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("amax", [0.0, 2.0**-126])
def test_operands_that_are_zero_or_hardly_more_are_finite(rule, amax):
    layer = te.Linear(128, 128, bias=False)
    torch.nn.init.constant_(layer.weight, amax)
    with plimsoll.watch("guard") as w:
        with te.fp8_autocast(fp8_recipe=rule):
            output = layer(torch.randn(32, 128, requires_grad=True))
        output.backward(torch.full_like(output, amax))
    for operand in ("weight", "grad_output"):
        record = record_of(w, f"Linear/{operand}")
        assert (record["amax"], record["non_finite"]) == (amax, 0)
        assert record["headroom_bits"] is None if amax == 0 else -1e-6 < record["headroom_bits"] < math.inf
    assert ", 0 not finite" in w.report() and not w.incidents


@pytest.mark.parametrize("rule", [recipe.DelayedScaling(), recipe.Float8CurrentScaling()], ids=lambda rule: type(rule).__name__)
def test_a_held_weight_that_is_quantized_anew_keeps_the_scale_of_its_call(rule):
    with te.quantized_model_init(recipe=rule):
        layer = te.Linear(128, 128)
    x = torch.randn(32, 128)
    headrooms = []
    for factor in (1, 1024):
        with plimsoll.watch("guard") as w, te.fp8_autocast(fp8_recipe=rule):
            layer(x)
            layer.weight.data.mul_(factor)
        headrooms.append(record_of(w, "Linear/weight")["headroom_bits"])
        layer.weight.data.mul_(1 / factor)
    assert headrooms[0] == headrooms[1]
