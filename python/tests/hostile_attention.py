"""Valid calls of the operators of attention, for tests to spoil."""

import torch
from hostile_arguments import T, codes, whole_numbers


def attention_operands(draw):
    heads, groups, queries, keys, channels = draw.choice(
        [(2, 1, 5, 7, 8), (4, 4, 16, 16, 16), (2, 2, 1, 65, 16), (4, 2, 70, 33, 24)]
    )
    return (T(2, heads, queries, channels), T(2, groups, keys, channels), T(2, groups, keys, channels)), (
        heads,
        groups,
        queries,
        keys,
        channels,
    )


def attention_rules(draw, heads, queries, keys):
    lengths = draw.choice([None, whole_numbers(2, below=keys + 2)])
    mask = draw.choice(
        [None, T(2, 1, queries, keys, dtype=torch.bool, fill=(0, 2)), T(1, queries + keys - 1, dtype=torch.bool, fill=(0, 2))]
    )
    bias = draw.choice([None, T(heads, queries, keys), T(1, queries + keys - 1)])
    return [lengths, mask, bias, 0.5, draw.choice(["no_mask", "causal", "causal_bottom_right"])]


def window(draw, rules):
    return 0 if rules[-1] == "no_mask" else draw.choice([0, 3])


def attention(draw):
    operands, (heads, _, queries, keys, _) = attention_operands(draw)
    rules = attention_rules(draw, heads, queries, keys)
    return [*operands, *rules, 0.1, window(draw, rules)]


def segments(draw, rules, tokens):
    """Beside key_lengths, mask and bias there are none."""
    return draw.choice([[], [tokens], [1, tokens - 1]]) if tokens > 1 and rules[:3] == [None] * 3 else []


def attention_forward(draw):
    (query, key, value), (heads, _, queries, keys, _) = attention_operands(draw)
    rules = attention_rules(draw, heads, queries, keys)
    lengths = segments(draw, rules, queries) if queries == keys else []
    return [query, key, value, *rules, 0.0, 3, window(draw, rules), lengths]


def attention_backward(draw):
    (query, key, value), (heads, _, queries, keys, channels) = attention_operands(draw)
    like = T(2, heads, queries, channels)
    rules = attention_rules(draw, heads, queries, keys)
    lengths = segments(draw, rules, queries) if queries == keys else []
    return [like, query, key, value, like, T(2, heads, queries), *rules, 0.0, 3, True, window(draw, rules), lengths]


def over_codes(draw):
    (query, key, value), (heads, groups, queries, keys, _) = attention_operands(draw)
    scale = T(2, groups, keys, fill=1)
    rules = attention_rules(draw, heads, queries, keys)
    return [query, codes(*key.shape), codes(*value.shape), scale, scale, *rules, window(draw, rules)]


def packed(draw):
    heads, groups, interleaved = draw.choice([(2, 1, False), (2, 2, True), (3, 3, False)])
    return T(2, 5, heads + 2 * groups, 8), heads, groups, interleaved


def packed_forward(draw):
    qkv, heads, groups, interleaved = packed(draw)
    rules = attention_rules(draw, heads, 5, 5)
    return [qkv, heads, groups, interleaved, *rules, 0.0, window(draw, rules)]


def packed_backward(draw):
    qkv, heads, groups, interleaved = packed(draw)
    like = T(2, heads, 5, 8)
    rules = attention_rules(draw, heads, 5, 5)
    saved = [like, T(2, heads, 5)]
    return [like, qkv, heads, groups, interleaved, *saved, *rules, 0.0, 3, True, window(draw, rules), segments(draw, rules, 5)]
