"""DotProductAttention, MultiheadAttention and TransformerLayer against torch's functions in double."""

from typing import Any

import composition
import oracle
import plimsoll.pytorch as te
import pytest
import torch
from torch.nn import functional

HEADS, CHANNELS, HIDDEN = 4, 8, 32


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(11)


def attention(query, key, value, hidden_keys=None):
    """[seq, batch, heads, channels], in the dtype that comes in; hidden_keys as attn_mask of torch, inverted."""
    query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
    repeat = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
    visible = None if hidden_keys is None else ~hidden_keys
    return functional.scaled_dot_product_attention(query, key, value, visible).permute(2, 0, 1, 3).flatten(2)


def causal(queries, keys, diagonal=1):
    return torch.ones(queries, keys, dtype=torch.bool).triu(diagonal)


def qkv(queries, keys, groups=HEADS, batch=3):
    return (
        torch.randn(queries, batch, HEADS, CHANNELS),
        torch.randn(keys, batch, groups, CHANNELS),
        torch.randn(keys, batch, groups, CHANNELS),
    )


def left_of_cancelled_scores(hidden_keys):
    """The gradient of a score, weight * (grad . v - grad . output), is exactly 0 where a query sees one key: output is v.
    Two sums of CHANNELS products are subtracted, and each may be off by CHANNELS * 2^-24 of its products' magnitudes,
    whatever order either is summed in. What is left is a score's error; q and k take it times k and q and the scale."""

    def cancelled(grad, query, key, value):
        grad, (query, key, value) = grad.unflatten(2, (HEADS, CHANNELS)), (x.abs() for x in (query, key, value))
        groups = key.shape[2]
        key, value = (x.repeat_interleave(HEADS // groups, 2) for x in (key, value))
        visible = torch.ones(()) if hidden_keys is None else (~hidden_keys).double()
        visible = visible.expand(key.shape[1], HEADS, query.shape[0], key.shape[0])
        alone = visible * (visible.sum(-1, keepdim=True) == 1)
        errors = 2 * CHANNELS * 2.0**-24 * CHANNELS**-0.5 * alone * torch.einsum("sbhd,tbhd->bhst", grad.abs(), value)
        of_query, of_key = torch.einsum("bhst,tbhd->sbhd", errors, key), torch.einsum("bhst,sbhd->tbhd", errors, query)
        return {"gradient of input 0": of_query.norm(), "gradient of input 1": of_key.unflatten(2, (groups, -1)).sum(3).norm()}

    return cancelled


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("queries,keys", [(1, 1), (9, 9), (5, 12)])
@pytest.mark.parametrize("mask_type", ["no_mask", "causal", "causal_bottom_right", "padding", "padding_causal", "arbitrary"])
def test_masks(mask_type, queries, keys, groups):
    module = te.DotProductAttention(HEADS, CHANNELS, groups, attn_mask_type=mask_type)
    padding = torch.arange(keys) >= torch.tensor([1, keys, (keys + 1) // 2])[:, None]
    above = causal(queries, keys, 1 + (keys - queries if mask_type.endswith("bottom_right") else 0))
    given: Any = {
        "padding": padding[:, None, None],
        "padding_causal": padding[:, None, None],
        "arbitrary": torch.rand(queries, keys) < 0.3,
    }.get(mask_type)
    if mask_type == "arbitrary":
        given[:, 0] = False
    both = None if given is None else given | above
    hidden = {"no_mask": None, "causal": above, "causal_bottom_right": above, "padding_causal": both}.get(mask_type, given)
    composition.check(
        module,
        lambda p, q, k, v: attention(q, k, v, hidden),
        *qkv(queries, keys, groups),
        forward=lambda q, k, v: module(q, k, v, given),
        cancelled=left_of_cancelled_scores(hidden),
    )


@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("queries,keys", [(9, 9), (5, 12), (12, 5)])
@pytest.mark.parametrize("left", [0, 2, 100])
@pytest.mark.parametrize("mask_type", ["causal", "causal_bottom_right", "padding_causal"])
def test_windows_hide_what_lies_further_left(mask_type, left, queries, keys, groups):
    module = te.DotProductAttention(HEADS, CHANNELS, groups, attn_mask_type=mask_type, window_size=(left, 0))
    offset = keys - queries if mask_type.endswith("bottom_right") else 0
    padding = (torch.arange(keys) >= torch.tensor([1, keys, (keys + 1) // 2])[:, None])[:, None, None]
    # A query whose window lies right of the last key sees the last keys in it.
    ends = (torch.arange(queries) + 1 + offset).clamp(max=keys)[:, None]
    hidden = causal(queries, keys, 1 + offset) | (torch.arange(keys) < ends - 1 - left)
    if mask_type == "padding_causal":
        hidden = hidden | padding
    composition.check(
        module,
        lambda p, q, k, v: torch.nan_to_num(attention(q, k, v, hidden)),
        *qkv(queries, keys, groups),
        forward=lambda q, k, v: module(q, k, v, padding if mask_type == "padding_causal" else None),
        cancelled=left_of_cancelled_scores(hidden),
    )


@pytest.mark.parametrize("layout", ["sbhd", "bshd"])
@pytest.mark.parametrize("window", [None, (2, 0)])
@pytest.mark.parametrize("queries,keys", [(9, 9), (5, 12), (12, 5)])
def test_the_diagonal_of_padded_sequences_ends_at_their_own_last_query_and_key(queries, keys, window, layout):
    module = te.DotProductAttention(
        HEADS, CHANNELS, 2, qkv_format=layout, attn_mask_type="padding_causal_bottom_right", window_size=window
    )
    alone = te.DotProductAttention(HEADS, CHANNELS, 2, attn_mask_type="causal_bottom_right", window_size=window)
    of_queries, of_keys = ([1, size, (size + 1) // 2] for size in (queries, keys))
    masks = [
        (torch.arange(size) >= torch.tensor(lengths)[:, None])[:, None, None]
        for size, lengths in ((queries, of_queries), (keys, of_keys))
    ]
    inputs = qkv(queries, keys, 2)
    given = [x if layout == "sbhd" else x.transpose(0, 1) for x in inputs]
    # A mask of keys alone is that of the queries, too, where there are as many; else no query is padding.
    for mask, lengths in ((tuple(masks), of_queries), (masks[1], of_queries if queries == keys else 3 * [queries])):
        output = module(*given, mask)
        output = output if layout == "sbhd" else output.transpose(0, 1)
        for place, (seen, there) in enumerate(zip(lengths, of_keys, strict=True)):
            query, key, value = (x[:, place : place + 1] for x in inputs)
            expected = alone(query[:seen], key[:there], value[:there])
            composition.assert_close(output[:seen, place], expected[:, 0].double(), "output")


def test_a_layer_takes_the_lengths_of_padded_sequences():
    x, lengths = torch.randn(7, 2, HIDDEN), [7, 4]
    mask = (torch.arange(7) >= torch.tensor(lengths)[:, None])[:, None, None]
    layer, alone = (
        composition.randomize(te.MultiheadAttention(HIDDEN, HEADS, attention_dropout=0.0, attn_mask_type=mask_type))
        for mask_type in ("padding_causal_bottom_right", "causal")
    )
    alone.load_state_dict(layer.state_dict())
    for given in (mask, (mask, mask)):
        output = layer(x, given)
        for place, length in enumerate(lengths):
            expected = alone(x[:length, place : place + 1])
            composition.assert_close(output[:length, place], expected[:, 0].double(), "output")


@pytest.mark.parametrize("fused", [False, True])
def test_layers_pass_their_windows_on(fused):
    options: Any = {"fuse_qkv_params": fused, "num_gqa_groups": 2}
    hidden = causal(7, 7) | ~causal(7, 7, -2)
    x = torch.randn(7, 3, HIDDEN)
    module = composition.randomize(te.MultiheadAttention(HIDDEN, HEADS, attention_dropout=0.0, window_size=(2, 0), **options))
    if not fused:
        composition.check(module, lambda p, x: multihead(p, "", x, 2, hidden), x)
    at_call = te.MultiheadAttention(HIDDEN, HEADS, attention_dropout=0.0, **options)
    at_call.load_state_dict(module.state_dict())
    assert torch.equal(at_call(x, window_size=(2, 0)), module(x))
    assert torch.equal(module(x, window_size=(-1, 0)), at_call(x)) and not torch.equal(module(x), at_call(x))
    layer, other = layer_of(window_size=(2, 0), **options), layer_of(**options)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x, window_size=(2, 0)), layer(x)) and not torch.equal(other(x), layer(x))


def test_a_window_needs_a_causal_mask():
    for window_size in ((2, 1), (-2, 0), (0, -1)):
        with pytest.raises(NotImplementedError, match="expected window_size"):
            te.DotProductAttention(HEADS, CHANNELS, window_size=window_size)
    with pytest.raises(NotImplementedError, match="with attn_mask_type 'no_mask'"):
        te.TransformerLayer(HIDDEN, 64, HEADS, self_attn_mask_type="no_mask", window_size=(2, 0))
    with pytest.raises(NotImplementedError, match="with attn_mask_type 'padding'"):
        te.DotProductAttention(HEADS, CHANNELS)(*qkv(3, 3), attn_mask_type="padding", window_size=(2, 0))
    query = torch.randn(2, 4, 3, 8)
    for window, mask_type in ((2, "no_mask"), (-1, "causal")):
        with pytest.raises(RuntimeError, match="attention: expected a window of 0, or of one key or more with a causal rule"):
            torch.ops.plimsoll.attention(query, query, query, mask_type=mask_type, window=window)


def test_causal_ignores_a_mask_and_layouts_agree():
    module = te.DotProductAttention(HEADS, CHANNELS)
    q, k, v = qkv(6, 6)
    expected = module(q, k, v)
    assert torch.equal(expected, module(q, k, v, torch.ones(3, 1, 1, 6, dtype=torch.bool)))
    other = module(*(x.transpose(0, 1) for x in (q, k, v)), qkv_format="bshd")
    assert torch.equal(expected, other.transpose(0, 1))


def test_a_bias_is_added_to_the_scores():
    module = te.DotProductAttention(HEADS, CHANNELS, attn_mask_type="no_mask", softmax_scale=0.5)
    bias = torch.randn(1, HEADS, 5, 6)
    q, k, v = qkv(5, 6)
    output = module(q, k, v, core_attention_bias_type="post_scale_bias", core_attention_bias=bias)
    scores = torch.einsum("sbhd,tbhd->bhst", q.double(), k.double()) * 0.5 + bias
    exact = torch.einsum("bhst,tbhd->sbhd", scores.softmax(-1), v.double()).flatten(2)
    composition.assert_close(output, exact, "output")


def test_a_bias_of_the_lowest_number_is_finite():
    """A row with nothing else has the mean of the values, as a mask of left padding leaves it."""
    module = te.DotProductAttention(HEADS, CHANNELS, attn_mask_type="no_mask")
    bias = torch.zeros(1, 1, 20, 30)
    bias[..., 10:, :] = torch.finfo(torch.float32).min
    bias[..., :10, 5:] = torch.finfo(torch.float32).min
    rows = bias.double().expand(1, HEADS, 20, 30)

    def compose(_, q, k, v):
        scores = torch.einsum("sbhd,tbhd->bhst", q, k) * CHANNELS**-0.5 + rows.to(q.dtype)
        return torch.einsum("bhst,tbhd->sbhd", scores.softmax(-1), v).flatten(2)

    def forward(q, k, v):
        return module(q, k, v, core_attention_bias_type="post_scale_bias", core_attention_bias=bias)

    composition.check(module, compose, *qkv(20, 30), forward=forward)


def test_dropout_is_drawn_while_training_only():
    module = te.DotProductAttention(HEADS, CHANNELS, attention_dropout=0.5)
    q, k, v = qkv(9, 9)
    assert not torch.equal(module(q, k, v), module(q, k, v))
    module.eval()
    assert torch.equal(module(q, k, v), module(q, k, v))


def weights_of(p, prefix, names):
    def joined(suffix):
        return torch.cat([p[f"{prefix}{name}_{suffix}"] for name in names])

    return joined("weight"), joined("bias")


def multihead(p, prefix, x, groups, hidden_keys, memory=None, fused=None):
    """Self-attention of x, or cross-attention of x to memory; with a norm where there is one."""
    kind = "layernorm_qkv" if memory is None else "layernorm_query"
    if f"{prefix}{kind}.layer_norm_weight" in p:
        x = composition.norm(x, p[f"{prefix}{kind}.layer_norm_weight"], p[f"{prefix}{kind}.layer_norm_bias"], "LayerNorm")
    else:
        kind = "qkv" if memory is None else "query_layer"
    if memory is None and fused is None:
        parts = [
            functional.linear(x, p[f"{prefix}{kind}.{name}_weight"], p[f"{prefix}{kind}.{name}_bias"])
            for name in ("query", "key", "value")
        ]
    elif memory is None:
        parts = fused(functional.linear(x, p[f"{prefix}{kind}.weight"], p[f"{prefix}{kind}.bias"]))
    else:
        parts = [functional.linear(x, p[f"{prefix}{kind}.weight"], p[f"{prefix}{kind}.bias"])]
        parts += [
            functional.linear(memory, p[f"{prefix}key_value.{name}_weight"], p[f"{prefix}key_value.{name}_bias"])
            for name in ("key", "value")
        ]
    query, key, value = (part.unflatten(2, (-1, CHANNELS)) for part in parts)
    attended = attention(query, key, value, hidden_keys)
    return functional.linear(attended, p[f"{prefix}proj.weight"], p[f"{prefix}proj.bias"])


@pytest.mark.parametrize("input_layernorm", [False, True])
@pytest.mark.parametrize("groups", [4, 2])
def test_multihead_attention(groups, input_layernorm):
    module = te.MultiheadAttention(HIDDEN, HEADS, num_gqa_groups=groups, attention_dropout=0.0, input_layernorm=input_layernorm)
    composition.randomize(module)
    composition.check(module, lambda p, x: multihead(p, "", x, groups, causal(7, 7)), torch.randn(7, 3, HIDDEN))


@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("interleaved", [True, False])
def test_fused_parameters_come_interleaved_or_one_after_the_other(interleaved, groups):
    module = te.MultiheadAttention(
        HIDDEN,
        HEADS,
        num_gqa_groups=groups,
        attention_dropout=0.0,
        fuse_qkv_params=True,
        qkv_weight_interleaved=interleaved,
        attn_mask_type="no_mask",
    )
    composition.randomize(module)

    def split(projected):
        if not interleaved:
            return projected.split([HIDDEN, groups * CHANNELS, groups * CHANNELS], 2)
        grouped = projected.unflatten(2, (groups, HEADS // groups + 2, CHANNELS))
        return [part.flatten(2) for part in grouped.split([HEADS // groups, 1, 1], 3)]

    composition.check(module, lambda p, x: multihead(p, "", x, groups, None, fused=split), torch.randn(7, 3, HIDDEN))


def test_cross_attention():
    module = te.MultiheadAttention(
        HIDDEN, HEADS, attention_dropout=0.0, attention_type="cross", attn_mask_type="no_mask", input_layernorm=True
    )
    composition.randomize(module)
    composition.check(
        module,
        lambda p, x, memory: multihead(p, "", x, HEADS, None, memory),
        torch.randn(5, 3, HIDDEN),
        torch.randn(9, 3, HIDDEN),
        forward=lambda x, memory: module(x, encoder_output=memory),
    )


def transformer(p, x, memory=None):
    x = x + multihead(p, "self_attention.", x, HEADS, causal(x.shape[0], x.shape[0]))
    if memory is not None:
        x = x + multihead(p, "inter_attention.", x, HEADS, None, memory)
    hidden = composition.norm(x, p["layernorm_mlp.layer_norm_weight"], p["layernorm_mlp.layer_norm_bias"], "LayerNorm")
    hidden = composition.activate(functional.linear(hidden, p["layernorm_mlp.fc1_weight"], p["layernorm_mlp.fc1_bias"]), "gelu")
    return x + functional.linear(hidden, p["layernorm_mlp.fc2_weight"], p["layernorm_mlp.fc2_bias"])


def layer_of(**options):
    return composition.randomize(te.TransformerLayer(HIDDEN, 64, HEADS, hidden_dropout=0.0, attention_dropout=0.0, **options))


def test_transformer_encoder_and_decoder_layers():
    x, memory = torch.randn(7, 3, HIDDEN), torch.randn(9, 3, HIDDEN)
    composition.check(layer_of(), transformer, x)
    decoder = layer_of(layer_type="decoder")
    composition.check(decoder, transformer, x, memory, forward=lambda a, b: decoder(a, encoder_output=b))


def test_transformer_layouts_agree():
    layer = layer_of(fuse_qkv_params=True)
    other = layer_of(fuse_qkv_params=True, attn_input_format="bshd")
    other.load_state_dict(layer.state_dict())
    x = torch.randn(7, 3, HIDDEN)
    composition.assert_close(other(x.transpose(0, 1)).transpose(0, 1).detach(), layer(x).detach().double(), "output")


@pytest.mark.parametrize("name", oracle.RECIPES)
def test_a_layer_under_a_recipe_stays_near_the_exact_one_and_trains(name):
    layer = layer_of()
    x = torch.randn(7, 3, HIDDEN)
    with te.fp8_autocast(fp8_recipe=oracle.RECIPES[name]):
        output = layer(x)
    output.square().sum().backward()
    exact = transformer({key: p.detach().double() for key, p in layer.named_parameters()}, x.double())
    # The residual stream is exact, and every branch has two or three products of operands within 2^-4 of themselves.
    assert (output.double() - exact).norm() / exact.norm() < 5 * 2.0**-4
    assert not torch.equal(output.double(), exact.double())
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


def test_torch_autocast_decides_the_dtype_and_gradients_stay_fp32():
    layer: Any = layer_of()
    x = torch.randn(7, 3, HIDDEN, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16), te.fp8_autocast():
        output = layer(x)
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert all(leaf.grad is not None and leaf.grad.dtype == torch.float32 for leaf in (x, *layer.parameters()))


@pytest.mark.parametrize("queries,keys", [(3, 7), (7, 3), (1, 5)])
@pytest.mark.parametrize("mask_type", ["causal", "causal_bottom_right"])
def test_the_operators_know_causal_rules_by_the_modules_names(mask_type, queries, keys):
    query, key, value = (torch.randn(2, 4, length, 8) for length in (queries, keys, keys))
    hidden = torch.ones(queries, keys, dtype=torch.bool).triu(1 + (keys - queries if mask_type.endswith("right") else 0))
    named = torch.ops.plimsoll.attention(query, key, value, mask_type=mask_type)
    torch.testing.assert_close(named, torch.ops.plimsoll.attention(query, key, value, mask=hidden))
    weights = torch.ops.plimsoll.softmax(torch.randn(2, 4, queries, keys), 1.0, mask_type)
    assert not weights.masked_select(hidden).any()
    visible = ~hidden.all(1)
    torch.testing.assert_close(weights.sum(-1)[..., visible], torch.ones(2, 4, int(visible.sum())))
    with pytest.raises(RuntimeError, match="expected mask_type no_mask, causal or causal_bottom_right, got 'bottom'"):
        torch.ops.plimsoll.attention(query, key, value, mask_type="bottom")
