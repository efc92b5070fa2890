"""Parts of TransformerLayer and MultiheadAttention that somebody waits for: hooks, forwards and modules in their places."""

import copy
from typing import Any, cast

import plimsoll.pytorch as te
import pytest
import torch
from plimsoll.common import recipe
from plimsoll.pytorch.rotary import RotaryPositionEmbedding

RULES = [None, recipe.DelayedScaling(), recipe.Float8CurrentScaling(), recipe.MXFP8BlockScaling(), recipe.NVFP4BlockScaling()]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fused": {"fuse_qkv_params": True},
    "groups": {"num_gqa_groups": 2},
    "decoder": {"layer_type": "decoder"},
    "output_layernorm": {"output_layernorm": True, "layer_type": "decoder"},
    "post_layernorm": {"apply_residual_connection_post_layernorm": True},
    "parallel": {"parallel_attention_mlp": True},
    "dropout": {"hidden_dropout": 0.3, "attention_dropout": 0.2},
}


def new_layer(kind="plain", dtype=torch.float32):
    torch.manual_seed(0)
    layer = te.TransformerLayer(
        32, 64, 4, **{"hidden_dropout": 0.0, "attention_dropout": 0.0, "params_dtype": dtype, **KINDS[kind]}
    )
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return layer


def steps(layer, rule=None, **options):
    """Outputs and gradients of two steps, and the scaling state after them."""
    dtype = next(layer.parameters()).dtype
    made = []
    for step in range(2):
        torch.manual_seed(step)
        x = torch.randn(6, 2, 32, dtype=dtype).requires_grad_()
        if layer.layer_type == "decoder":
            options["encoder_output"] = torch.randn(5, 2, 32, dtype=dtype)
        with te.fp8_autocast(enabled=rule is not None, fp8_recipe=rule):
            y = layer(x, **options)
        y.backward(torch.randn_like(y))
        made += [y.detach(), x.grad]
    return made + [p.grad for p in layer.parameters()] + [b.clone() for b in layer.buffers()]


def hook_all(layer):
    seen: list[str] = []
    for name, part in layer.named_modules():
        part.register_forward_pre_hook(lambda *_, name=name: seen.append(f"before {name}"))
        part.register_forward_hook(lambda *_, name=name: seen.append(f"after {name}"))
        part.register_full_backward_hook(lambda *_, name=name: seen.append(f"backward {name}"))
    return seen


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # of the encoder's output, which needs no gradient
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_hooks_of_every_part_run_and_change_no_bit(kind, rule):
    plain, hooked = new_layer(kind), new_layer(kind)
    seen = hook_all(hooked)
    for expected, got in zip(steps(plain, rule), steps(hooked, rule), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
    for name, _ in hooked.named_modules():
        assert [seen.count(f"{what} {name}") for what in ("before", "after", "backward")] == [2, 2, 2], name


@pytest.mark.parametrize(
    "part", ["self_attention", "self_attention.layernorm_qkv", "self_attention.core_attention", "layernorm_mlp"]
)
@pytest.mark.parametrize("kind", ["plain", "decoder", "post_layernorm"])
def test_one_hooked_part_changes_no_bit(kind, part):
    plain, hooked = new_layer(kind), new_layer(kind)
    hooked.get_submodule(part).register_forward_hook(lambda *_: None)
    for expected, got in zip(steps(plain, RULES[1]), steps(hooked, RULES[1]), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_narrow_types_the_sum_before_a_part_that_is_called_is_rounded(dtype):
    plain, hooked = new_layer("plain", dtype), new_layer("plain", dtype)
    hook_all(hooked)
    for expected, got in zip(steps(plain)[:2], steps(hooked)[:2], strict=True):
        assert (got.double() - expected.double()).norm() <= 4 * torch.finfo(dtype).eps * expected.double().norm()


def test_what_a_hook_returns_takes_the_place_of_the_output():
    for part in ("self_attention", "layernorm_mlp", "self_attention.layernorm_qkv", "self_attention.core_attention"):
        layer = new_layer()
        x = torch.randn(6, 2, 32)
        before = layer(x)
        handle = layer.get_submodule(part).register_forward_hook(lambda _, inputs, output: output * 2)
        assert not torch.equal(layer(x), before), part
        handle.remove()
        assert torch.equal(layer(x), before), part


class Doubled(torch.nn.Module):
    """A user's module in the place of a part."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *arguments, **keywords):
        return self.inner(*arguments, **keywords) * 2


@pytest.mark.parametrize("part", ["layernorm_mlp", "self_attention.layernorm_qkv", "self_attention.core_attention"])
def test_a_replaced_forward_and_a_module_in_the_place_of_a_part_are_called(part):
    x = torch.randn(6, 2, 32)
    layer, other = new_layer(), new_layer()
    inner = layer.get_submodule(part)
    original = inner.forward
    cast(Any, inner).forward = lambda *arguments, **keywords: original(*arguments, **keywords) * 2
    owner, _, name = part.rpartition(".")
    setattr(other.get_submodule(owner), name, Doubled(other.get_submodule(part)))
    unchanged = new_layer()(x)
    assert torch.equal(layer(x), other(x)) and not torch.equal(layer(x), unchanged)


def test_a_module_of_the_users_own_may_stand_for_attention():
    class Averages(torch.nn.Module):
        def forward(self, hidden, **_):
            return hidden.mean(0, keepdim=True).expand_as(hidden)

    layer = new_layer()
    cast(Any, layer).self_attention = Averages()
    x = torch.randn(6, 2, 32)
    hidden = x + x.mean(0, keepdim=True)
    torch.testing.assert_close(layer(x), hidden + layer.layernorm_mlp(hidden), rtol=0, atol=0)


def test_a_subclass_with_a_forward_of_its_own_is_called():
    class Halved(te.LayerNormMLP):
        def forward(self, *arguments, **keywords):
            return super().forward(*arguments, **keywords) * 0.5

    layer, halved = new_layer(), new_layer()
    halved.layernorm_mlp.__class__ = Halved
    x = torch.randn(6, 2, 32)
    assert not torch.equal(halved(x), layer(x))


def test_hooks_see_the_arguments_of_the_layers_call():
    layer = new_layer()
    seen = []
    layer.self_attention.register_forward_pre_hook(lambda _, inputs, keywords: seen.append(keywords), with_kwargs=True)
    angles = RotaryPositionEmbedding(8)(6)
    bias = torch.randn(1, 4, 6, 6)
    options: dict[str, Any] = {
        "core_attention_bias_type": "post_scale_bias",
        "core_attention_bias": bias,
        "rotary_pos_emb": angles,
    }
    x = torch.randn(6, 2, 32)
    assert torch.equal(layer(x, **options, window_size=(2, 0)), new_layer()(x, **options, window_size=(2, 0)))
    assert seen[0]["core_attention_bias"] is bias and seen[0]["rotary_pos_emb"] is angles and seen[0]["window_size"] == (2, 0)


def test_a_compiled_layer_with_hooks_has_the_bits_of_eager_mode():
    layer = new_layer()
    hook_all(layer.self_attention)
    eager = steps(copy.deepcopy(layer), RULES[1])
    compiled = torch.compile(layer, backend="aot_eager")
    for expected, got in zip(eager, steps(compiled, RULES[1]), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
