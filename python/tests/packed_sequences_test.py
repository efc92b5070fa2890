"""The layout "thd": sequences one after the other have the bits of each by itself."""

from typing import Any

import plimsoll.pytorch as te
import pytest
import torch
from plimsoll.common import recipe

LENGTHS = (5, 0, 1, 8)
SUMS = torch.tensor([0, 5, 5, 6, 14], dtype=torch.int32)


def sequences(x, sums=SUMS, starts=None):
    starts = sums[:-1] if starts is None else starts
    return [x[start : start + length] for start, length in zip(starts.tolist(), sums.diff().tolist(), strict=True)]


@pytest.mark.parametrize(
    "mask,window",
    [
        ("padding", None),
        ("padding_causal", None),
        ("padding_causal", (2, 0)),
        ("padding_causal_bottom_right", None),
        ("no_mask", None),
        ("causal", None),
    ],
)
def test_each_sequence_is_attended_by_itself(mask, window):
    module = te.DotProductAttention(4, 8, 2, qkv_format="thd", attn_mask_type=mask, window_size=window)
    rule = mask.replace("padding_", "").replace("padding", "no_mask")
    alone = te.DotProductAttention(4, 8, 2, attn_mask_type=rule, window_size=window)
    query, key, value = (torch.randn(14, heads, 8, requires_grad=True) for heads in (4, 2, 2))
    seed = torch.randn(14, 32)
    packed = module(query, key, value, cu_seqlens_q=SUMS, cu_seqlens_kv=SUMS, max_seqlen_q=8, max_seqlen_kv=8)
    ours = torch.autograd.grad(packed, (query, key, value), seed)
    each = [
        alone(*(part[:, None] for part in one))[:, 0]
        for one in zip(*map(sequences, (query, key, value)), strict=True)
        if len(one[0])
    ]
    expected = torch.autograd.grad(torch.cat(each), (query, key, value), seed)
    assert torch.equal(packed, torch.cat(each))
    for one, two in zip(ours, expected, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("mask", ["padding_causal", "padding_causal_bottom_right"])
def test_keys_may_be_more_than_queries(mask):
    module = te.DotProductAttention(2, 8, qkv_format="thd", attn_mask_type=mask)
    alone = te.DotProductAttention(2, 8, attn_mask_type=mask.replace("padding_", ""))
    key_sums = torch.tensor([0, 7, 9, 12, 20], dtype=torch.int32)
    query, key, value = torch.randn(14, 2, 8), torch.randn(20, 2, 8), torch.randn(20, 2, 8)
    packed = module(query, key, value, cu_seqlens_q=SUMS, cu_seqlens_kv=key_sums)
    parts = zip(sequences(query), sequences(key, key_sums), sequences(value, key_sums), strict=True)
    each = [alone(q[:, None], k[:, None], v[:, None])[:, 0] for q, k, v in parts if len(q)]
    assert torch.equal(packed, torch.cat(each))


def test_tokens_between_sequences_are_zero_and_have_no_gradient():
    module = te.DotProductAttention(2, 8, qkv_format="thd", attn_mask_type="padding_causal")
    starts = torch.tensor([0, 6, 8, 12, 21], dtype=torch.int32)
    query, key, value = (torch.randn(21, 2, 8, requires_grad=True) for _ in range(3))
    sums = {"cu_seqlens_q": SUMS, "cu_seqlens_kv": SUMS, "cu_seqlens_q_padded": starts, "cu_seqlens_kv_padded": starts}
    padded: Any = module(query, key, value, **sums, pad_between_seqs=True)
    padded.sum().backward()
    dense = [torch.cat(sequences(x, starts=starts[:-1])) for x in (query, key, value)]
    expected = module(*dense, cu_seqlens_q=SUMS, cu_seqlens_kv=SUMS)
    assert torch.equal(torch.cat(sequences(padded, starts=starts[:-1])), expected)
    inside = torch.zeros(21, dtype=torch.bool)
    for start, length in zip(starts.tolist(), LENGTHS, strict=False):
        inside[start : start + length] = True
    assert padded[~inside].count_nonzero() == 0 and query.grad is not None and query.grad[~inside].count_nonzero() == 0


@pytest.mark.parametrize("rule", [None, recipe.Float8CurrentScaling(granularity="row")])
def test_a_layer_over_packed_sequences_is_the_layer_over_each(rule):
    """Rows have scales of their own, so that products of one sequence do not depend on the others."""
    keywords: dict[str, Any] = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    torch.manual_seed(1)
    layer = te.TransformerLayer(16, 24, 2, attn_input_format="thd", self_attn_mask_type="padding_causal", **keywords)
    alone = te.TransformerLayer(16, 24, 2, self_attn_mask_type="causal", **keywords)
    alone.load_state_dict(layer.state_dict())
    angles = te.RotaryPositionEmbedding(8)(8)
    x = torch.randn(14, 16)
    with te.fp8_autocast(enabled=rule is not None, fp8_recipe=rule):
        packed = layer(x, rotary_pos_emb=angles, cu_seqlens_q=SUMS, cu_seqlens_kv=SUMS)
        each = [alone(part[:, None], rotary_pos_emb=angles)[:, 0] for part in sequences(x) if len(part)]
    assert torch.equal(packed, torch.cat(each))


def test_tokens_between_sequences_need_no_angles():
    torch.manual_seed(1)
    module = te.MultiheadAttention(16, 2, attention_dropout=0.0, qkv_format="thd", attn_mask_type="padding_causal")
    starts = torch.tensor([0, 60, 62, 70, 128], dtype=torch.int32)
    angles, x = te.RotaryPositionEmbedding(8)(max(LENGTHS)), torch.randn(128, 16)
    sums = {"cu_seqlens_q": SUMS, "cu_seqlens_kv": SUMS}
    padded = module(x, rotary_pos_emb=angles, **sums, cu_seqlens_q_padded=starts, cu_seqlens_kv_padded=starts)
    dense = module(torch.cat(sequences(x, starts=starts[:-1])), rotary_pos_emb=angles, **sums)
    assert torch.equal(torch.cat(sequences(padded, starts=starts[:-1])), dense)
    with pytest.raises(ValueError, match="as many starts in cu_seqlens_padded"):
        module(x, rotary_pos_emb=angles, **sums, cu_seqlens_q_padded=starts[:-1], cu_seqlens_kv_padded=starts)


@pytest.mark.parametrize(
    "keywords,message",
    [
        ({}, "cu_seqlens_q .*got None"),
        ({"cu_seqlens_q": SUMS}, "cu_seqlens_kv .*got None"),
        ({"cu_seqlens_q": SUMS + 1, "cu_seqlens_kv": SUMS}, "cu_seqlens_q that starts at 0"),
        ({"cu_seqlens_q": SUMS.float(), "cu_seqlens_kv": SUMS}, "int32"),
        ({"cu_seqlens_q": SUMS[:-1], "cu_seqlens_kv": SUMS}, "cu_seqlens_q within 14 tokens|as many sequences"),
        ({"cu_seqlens_q": SUMS * 2, "cu_seqlens_kv": SUMS}, "cu_seqlens_q within 14 tokens"),
    ],
)
def test_mistakes_are_named(keywords, message):
    module = te.DotProductAttention(2, 8, qkv_format="thd", attn_mask_type="padding")
    x = torch.randn(14, 2, 8)
    with pytest.raises(ValueError, match=message):
        module(x, x, x, **keywords)


def test_sums_are_refused_in_other_layouts():
    x = torch.randn(14, 1, 2, 8)
    with pytest.raises(NotImplementedError, match="cu_seqlens_q with qkv_format 'thd'"):
        te.DotProductAttention(2, 8)(x, x, x, cu_seqlens_q=SUMS)
