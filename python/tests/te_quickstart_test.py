"""A GPT layer as the first page of Transformer Engine's documentation builds it, step by step: of torch's modules, of the
library's, of fused ones, of the whole layer, and that in FP8. The calls are Transformer Engine's with nothing but the import
changed, and each step computes what the one before does."""

import composition
import plimsoll.pytorch as te
import pytest
import torch
from plimsoll.common.recipe import DelayedScaling, Format
from torch import nn
from torch.nn import functional

HIDDEN, FFN, HEADS, TOKENS, BATCH = 64, 128, 4, 24, 2
EPS, NO_DROPOUT = 1e-5, 0.0


class Core(nn.Module):
    """Attention of torch's functions, as the page has it before the library's."""

    def __init__(self, heads, channels):
        super().__init__()
        self.heads, self.channels = heads, channels

    def forward(self, query, key, value, attention_mask=None):
        q, k, v = (x.reshape(*x.shape[:2], self.heads, self.channels).permute(1, 2, 0, 3) for x in (query, key, value))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return attended.permute(2, 0, 1, 3).reshape(query.shape[0], query.shape[1], -1)


class BasicMlp(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.linear1, self.linear2 = linear(HIDDEN, FFN, bias=True), linear(FFN, HIDDEN, bias=True)

    def forward(self, x):
        return self.linear2(functional.gelu(self.linear1(x), approximate="tanh"))


class BasicLayer(nn.Module):
    """norm, linear: whose modules these are; core: attention."""

    def __init__(self, norm, linear, core):
        super().__init__()
        self.ln1, self.ln2 = norm(HIDDEN, eps=EPS), norm(HIDDEN, eps=EPS)
        self.qkv_projection = linear(HIDDEN, 3 * HIDDEN, bias=True)
        self.attention = core
        self.projection = linear(HIDDEN, HIDDEN, bias=True)
        self.mlp = BasicMlp(linear)

    def forward(self, x, attention_mask=None):
        projected = self.qkv_projection(self.ln1(x))
        per_head = projected.view(TOKENS, BATCH, HEADS, 3 * HIDDEN // HEADS)
        query, key, value = (part.reshape(TOKENS, BATCH, HIDDEN) for part in per_head.chunk(3, 3))
        x = x + self.projection(self.attention(query, key, value, attention_mask))
        return x + self.mlp(self.ln2(x))


class FusedLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_qkv = te.LayerNormLinear(HIDDEN, 3 * HIDDEN, eps=EPS, bias=True)
        self.attention = te.DotProductAttention(HEADS, HIDDEN // HEADS, attention_dropout=NO_DROPOUT)
        self.projection = te.Linear(HIDDEN, HIDDEN, bias=True)
        self.ln_mlp = te.LayerNormMLP(HIDDEN, FFN, eps=EPS, bias=True)

    def forward(self, x, attention_mask=None):
        per_head = self.ln_qkv(x).view(TOKENS, BATCH, HEADS, 3 * HIDDEN // HEADS)
        query, key, value = per_head.chunk(3, 3)
        x = x + self.projection(self.attention(query, key, value, attention_mask, attn_mask_type="causal"))
        return x + self.ln_mlp(x)


def whole_layer():
    return te.TransformerLayer(
        HIDDEN,
        FFN,
        HEADS,
        layernorm_epsilon=EPS,
        hidden_dropout=NO_DROPOUT,
        attention_dropout=NO_DROPOUT,
        self_attn_mask_type="causal",
        fuse_qkv_params=True,
    )


# Names of a step's parameters by those of the first.
FUSED = {
    "ln1": "ln_qkv.layer_norm",
    "qkv_projection": "ln_qkv",
    "projection": "projection",
    "ln2": "ln_mlp.layer_norm",
    "mlp.linear1": "ln_mlp.fc1",
    "mlp.linear2": "ln_mlp.fc2",
}
WHOLE = {
    "ln1": "self_attention.layernorm_qkv.layer_norm",
    "qkv_projection": "self_attention.layernorm_qkv",
    "projection": "self_attention.proj",
    "ln2": "layernorm_mlp.layer_norm",
    "mlp.linear1": "layernorm_mlp.fc1",
    "mlp.linear2": "layernorm_mlp.fc2",
}


def shared(basic, layer, names):
    """`layer` with the values of `basic`."""
    values = {}
    for name, parameter in basic.named_parameters():
        place, kind = name.rsplit(".", 1)
        here = names.get(place, place)
        separator = "_" if here.endswith(("layer_norm", "fc1", "fc2")) else "."
        values[f"{here}{separator}{kind}"] = parameter.detach()
    absent, unexpected = layer.load_state_dict(values, strict=False)
    assert not unexpected and all("amax" in name or "scale" in name or "step" in name for name in absent)
    return layer


@pytest.fixture
def basic():
    torch.manual_seed(11)
    return composition.randomize(BasicLayer(nn.LayerNorm, nn.Linear, Core(HEADS, HIDDEN // HEADS)))


def of_modules(basic):
    return shared(basic, BasicLayer(te.LayerNorm, te.Linear, Core(HEADS, HIDDEN // HEADS)), {})


def of_fused_modules(basic):
    return shared(basic, FusedLayer(), FUSED)


def of_one_module(basic):
    return shared(basic, whole_layer(), WHOLE)


STEPS = {"modules": of_modules, "fused modules": of_fused_modules, "TransformerLayer": of_one_module}


def step(layer, x, dy):
    """Output, gradient of the input and the sum of the squares of the parameters' gradients, as a training step has them."""
    x = x.clone().requires_grad_()
    y = layer(x, attention_mask=None)
    y.backward(dy)
    return y.detach(), x.grad, torch.stack([p.grad.double().square().sum() for p in layer.parameters()]).sum().sqrt()


@pytest.mark.parametrize("name", STEPS)
def test_each_step_of_the_page_computes_what_torch_does(name, basic):
    layer = STEPS[name](basic)
    x, dy = torch.randn(TOKENS, BATCH, HIDDEN), torch.randn(TOKENS, BATCH, HIDDEN)
    ours = step(layer, x, dy)
    exact = step(basic.double(), x.double(), dy.double())
    for mine, value, what in zip(ours, exact, ("output", "gradient of the input", "gradients of the parameters"), strict=True):
        composition.assert_close(mine, value, what)


def test_fp8_is_enabled_by_one_scope_around_the_same_layer(basic):
    fp8_format = Format.HYBRID
    fp8_recipe = DelayedScaling(fp8_format=fp8_format, amax_history_len=16, amax_compute_algo="max")
    layer = of_one_module(basic)
    products = ["self_attention.layernorm_qkv.", "self_attention.proj.", "layernorm_mlp.fc1_", "layernorm_mlp.fc2_"]
    exact = None
    for number in range(3):
        x, dy = torch.randn(TOKENS, BATCH, HIDDEN), torch.randn(TOKENS, BATCH, HIDDEN)
        exact = basic(x).detach()
        with te.fp8_autocast(enabled=True, fp8_recipe=fp8_recipe):
            y = layer(x, attention_mask=None)
        y.backward(dy)
        state = dict(layer.named_buffers())
        for product in products:
            for operand in ("input", "weight", "grad_output"):
                assert state[f"{product}{operand}_step"].item() == number + 1
                assert state[f"{product}{operand}_amax_history"].shape == (16,) and state[f"{product}{operand}_scale"] > 0
        # Four products in a row of the two branches have operands that are 2^-4 off at most, and the residual is exact.
        distance = ((y - exact).norm() / (exact - x).norm()).item()
        assert 2.0**-20 < distance < 4 * 2 * 2.0**-4
    with te.fp8_autocast(enabled=False):
        composition.assert_close(layer(x, attention_mask=None), basic.double()(x.double()), "without FP8")


def test_the_names_of_the_pages_newer_edition_are_the_same_scope(basic):
    recipe = DelayedScaling(fp8_format=Format.HYBRID, amax_history_len=16, amax_compute_algo="max")
    one, two = of_one_module(basic), of_one_module(basic)
    x = torch.randn(TOKENS, BATCH, HIDDEN)
    with te.autocast(enabled=True, recipe=recipe):
        first = one(x)
    with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
        second = two(x)
    assert torch.equal(first, second)
