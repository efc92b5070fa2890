"""Parts of a decoder of any family as views of its weights, which grafts of outliers multiply in place."""

from typing import NamedTuple

import torch


class Rows(NamedTuple):
    """Weight and bias of a product whose last dimension is what it reads; a product of heads has [heads, dim, in]."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def scale(self, rows, factor):
        """Multiplies the outputs `rows`, an index of all dimensions but the last."""
        self.weight[rows] *= factor
        if self.bias is not None:
            self.bias[rows] *= factor


class Heads(NamedTuple):
    """Attention of a block. reads: a product that reads what queries, keys and values are made of; rotary: how many channels of a
    head turn, in pairs that are half of them apart."""

    reads: torch.nn.Module
    query: Rows
    key: Rows
    value: Rows
    out: torch.Tensor  # [hidden, heads, dim]
    norms: tuple[torch.nn.Module, torch.nn.Module] | None  # of each query and each key
    rotary: int

    @property
    def shared(self):
        """Heads of queries for each of keys."""
        return self.query.weight.shape[0] // self.key.weight.shape[0]

    def queries(self, head):
        """Heads of queries that read a head of keys and values."""
        return slice(head * self.shared, (head + 1) * self.shared)


def inner(model):
    return next(getattr(model, name) for name in ("transformer", "gpt_neox", "model") if hasattr(model, name))


def blocks(model):
    return inner(model).h if hasattr(inner(model), "h") else inner(model).layers


def last_norm(model):
    return next(getattr(inner(model), name) for name in ("ln_f", "final_layer_norm", "norm") if hasattr(inner(model), name))


def embeddings(model):
    return [inner(model).wte, inner(model).wpe] if hasattr(inner(model), "wte") else [model.get_input_embeddings()]


def weight_of(product):
    """[out, in]; transformers' Conv1D has the transpose."""
    return product.weight.mT if type(product).__name__ == "Conv1D" else product.weight


def rows_of(product):
    return Rows(weight_of(product), product.bias)


def split_heads(rows, heads):
    """[heads, dim, in] of [heads * dim, in]."""
    bias = rows.bias
    return Rows(rows.weight.unflatten(0, (heads, -1)), None if bias is None else bias.unflatten(0, (heads, -1)))


def heads_of(block):
    if hasattr(block, "attn"):
        heads = block.attn.num_heads
        together = split_heads(rows_of(block.attn.c_attn), 3 * heads)
        query, key, value = (Rows(*each) for each in zip(*(part.chunk(3) for part in together), strict=True))
        return Heads(block.attn.c_attn, query, key, value, weight_of(block.attn.c_proj).unflatten(1, (heads, -1)), None, 0)
    if hasattr(block, "attention"):
        attention = block.attention
        heads = attention.config.num_attention_heads
        weight, bias = split_heads(rows_of(attention.query_key_value), heads)
        parts = weight.chunk(3, 1), [None] * 3 if bias is None else bias.chunk(3, 1)
        query, key, value = (Rows(*each) for each in zip(*parts, strict=True))
        out = attention.dense.weight.unflatten(1, (heads, -1))
        return Heads(attention.query_key_value, query, key, value, out, None, attention.rotary_ndims)
    attention = block.self_attn
    heads, shared = attention.config.num_attention_heads, attention.config.num_key_value_heads
    query, key, value = (
        split_heads(rows_of(product), count)
        for product, count in ((attention.q_proj, heads), (attention.k_proj, shared), (attention.v_proj, shared))
    )
    norms = (attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else None
    out = attention.o_proj.weight.unflatten(1, (heads, -1))
    return Heads(attention.q_proj, query, key, value, out, norms, attention.head_dim)


def gated_of(block):
    """Rows of the up-projection of a gated MLP, and the weight [hidden, channels] of the down-projection; None without a gate."""
    return (rows_of(block.mlp.up_proj), block.mlp.down_proj.weight) if hasattr(block.mlp, "up_proj") else None


def readers(block):
    """(norm, the weights [out, in] of products that read it) of the attention and of the MLP."""
    mlp = block.mlp
    if hasattr(block, "attn"):
        return [(block.ln_1, [weight_of(block.attn.c_attn)]), (block.ln_2, [weight_of(mlp.c_fc)])]
    if hasattr(block, "attention"):
        return [
            (block.input_layernorm, [block.attention.query_key_value.weight]),
            (block.post_attention_layernorm, [mlp.dense_h_to_4h.weight]),
        ]
    attention = block.self_attn
    before = getattr(block, "pre_feedforward_layernorm", block.post_attention_layernorm)
    return [
        (block.input_layernorm, [product.weight for product in (attention.q_proj, attention.k_proj, attention.v_proj)]),
        (before, [mlp.gate_proj.weight, mlp.up_proj.weight]),
    ]


def is_zero_centered(norm):
    return type(norm).__name__.startswith("Gemma")


def scale_norm(norm, channels, factor):
    """Outputs of a norm times the factor; exact for a power of two where 1 + w has the bits for it."""
    if is_zero_centered(norm):
        norm.weight[channels] = (1 + norm.weight[channels]) * factor - 1
    else:
        norm.weight[channels] *= factor
    if getattr(norm, "bias", None) is not None:
        norm.bias[channels] *= factor


def branches(block):
    """The products whose outputs are added to the residual stream, of attention and MLP."""
    if hasattr(block, "attn"):
        return [block.attn.c_proj, block.mlp.c_proj]
    if hasattr(block, "attention"):
        return [block.attention.dense, block.mlp.dense_4h_to_h]
    return [block.self_attn.o_proj, block.mlp.down_proj]


def norms_behind(block):
    """Norms of what the branches add."""
    has_them = hasattr(block, "post_feedforward_layernorm")
    return [block.post_attention_layernorm, block.post_feedforward_layernorm] if has_them else []


def written(block):
    """The down-projection of the MLP, or the norm behind it, which adds to the residual stream."""
    return norms_behind(block)[1] if norms_behind(block) else branches(block)[1]
