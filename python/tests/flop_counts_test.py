"""FlopCounterMode counts what it counts of torch's layers."""

from collections.abc import Callable
from typing import Any

import plimsoll
import plimsoll.pytorch as te
import pytest
import torch
import torch.nn.functional as F
from plimsoll.common import recipe
from torch.utils.flop_counter import FlopCounterMode

RULES = [None, recipe.DelayedScaling(), recipe.MXFP8BlockScaling(), recipe.NVFP4BlockScaling()]


class Mlp(torch.nn.Sequential):
    def __init__(self, gated=False):
        super().__init__()
        self.norm, self.fc1, self.fc2 = torch.nn.LayerNorm(16), torch.nn.Linear(16, 64 if gated else 32), torch.nn.Linear(32, 16)

    def forward(self, x):
        x = self.fc1(self.norm(x))
        return self.fc2(F.gelu(x) if x.shape[-1] == 32 else F.glu(x))


PAIRS: dict[str, Callable[[], tuple[torch.nn.Module, torch.nn.Module]]] = {
    "Linear": lambda: (te.Linear(16, 8), torch.nn.Linear(16, 8)),
    "LayerNormLinear": lambda: (te.LayerNormLinear(16, 8), torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.Linear(16, 8))),
    "LayerNormMLP": lambda: (te.LayerNormMLP(16, 32), Mlp()),
    "gated": lambda: (te.LayerNormMLP(16, 32, activation="geglu"), Mlp(gated=True)),
}


def counted(module, rule=None, frozen=(), inputs=None, needs_input=True):
    """FLOPs of a forward pass and of both passes."""
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(not any(part in name for part in frozen))
    inputs = [torch.randn(6, 2, 16)] if inputs is None else inputs
    inputs = [x.clone().requires_grad_(needs_input) for x in inputs]
    counts = []
    for backward in (False, True):
        with FlopCounterMode(display=False) as counter, te.fp8_autocast(enabled=rule is not None, fp8_recipe=rule):
            y = module(*inputs)
            if backward:
                y.sum().backward()
        counts.append(counter.get_total_flops())
    return counts


@pytest.mark.parametrize("needs_input", [True, False])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("name", PAIRS)
def test_products_count_as_torchs(name, rule, needs_input):
    ours, theirs = PAIRS[name]()
    got = counted(ours, rule, needs_input=needs_input)
    assert got == counted(theirs, needs_input=needs_input) and 0 < got[0] < got[1]


def test_gradients_that_nobody_asks_for_count_nothing():
    ours, theirs = PAIRS["LayerNormMLP"]()
    for frozen in (["fc1"], ["fc2"], ["norm", "fc1"]):
        for needs_input in (False, True):
            assert counted(ours, None, frozen, None, needs_input) == counted(theirs, None, frozen, None, needs_input), frozen


def test_attention_counts_two_products_and_five_in_backward_which_makes_the_scores_again():
    class Theirs(torch.nn.Module):
        def forward(self, *qkv):
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # torch has no formula of its CPU kernel
                query, key, value = (x.permute(1, 2, 0, 3) for x in qkv)
                return F.scaled_dot_product_attention(query, key, value)

    heads: list[Any] = [torch.randn(6, 2, 4, 8), torch.randn(9, 2, 4, 8), torch.randn(9, 2, 4, 8)]
    forward, both = counted(te.DotProductAttention(4, 8, attn_mask_type="no_mask"), inputs=heads)
    product = 2 * (2 * 4) * 6 * 9 * 8
    assert (forward, both) == (2 * product, 7 * product)
    assert counted(Theirs(), inputs=heads) == [2 * product, 6 * product]  # which keeps the scores


@pytest.mark.parametrize("groups", [4, 2])
def test_a_whole_layer_counts_its_products_and_its_attention(groups):
    layer = te.TransformerLayer(16, 32, 4, num_gqa_groups=groups, hidden_dropout=0.0, attention_dropout=0.0)
    linear = 2 * 12 * (16 * (16 + 8 * groups) + 16 * 16 + 2 * 16 * 32)
    product = 2 * (2 * 4) * 6 * 6 * 4  # of 2 sequences, 4 heads, 6 tokens, 4 channels
    assert counted(layer) == [linear + 2 * product, 3 * linear + 7 * product]


def test_a_converted_model_counts_as_before():
    model = torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))
    before = counted(model)
    plimsoll.convert(model, recipe=recipe.DelayedScaling())
    assert counted(model) == before
