"""torch.nn.MultiheadAttention, in place."""

from __future__ import annotations

import torch
from torch.nn import functional

import plimsoll.pytorch as te
from plimsoll.convert.linear import swap_linear
from plimsoll.convert.masks import Masks
from plimsoll.convert.swap import Converted, state_on, swap


class _Projection(te.Linear):
    """A product with rows of an attention's weight: those of query, key or value (part 0, 1, 2), or all (None). Holds the
    scaling state, and no parameter."""

    _attention: torch.nn.MultiheadAttention
    _part: int | None

    def _joined(self, suffix: str) -> torch.Tensor | None:
        attention, part = self._attention, self._part
        whole = attention.in_proj_weight if suffix == "weight" else attention.in_proj_bias
        if suffix == "weight" and whole is None:
            return (attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight)[part]
        return whole if part is None or whole is None else whole.chunk(3)[part]


class ConvertedMultiheadAttention(Converted, torch.nn.MultiheadAttention):
    """Called like torch's, with its parameters. Children: in_proj, where query, key and value are one tensor; query, key
    and value, where they are not; core_attention, out_proj. A query that may see no key gives 0, not NaN, unless the
    weights are asked for."""

    in_proj: _Projection
    query: _Projection
    key: _Projection
    value: _Projection
    core_attention: te.DotProductAttention

    # torch.nn.TransformerEncoderLayer reads it to choose a path that would not call this module.
    _qkv_same_embed_dim = property(lambda self: False)

    def _heads(self, projected: torch.Tensor) -> torch.Tensor:
        """[batch, seq, heads, head_dim]"""
        heads: torch.Tensor = projected.unflatten(2, (-1, self.head_dim))
        return heads

    def _attend(self, parts: list[torch.Tensor], masks: Masks, causal: bool) -> torch.Tensor:
        mask_type = "causal" if causal else "no_mask" if masks.hidden is None else "arbitrary"
        if len(parts) == 1 and masks.added is None:
            return self.core_attention.forward_packed(self._heads(parts[0]), mask_type, masks.hidden, False)
        query, key, value = (self._heads(part) for part in (parts[0].chunk(3, 2) if len(parts) == 1 else parts))
        bias = {} if masks.added is None else {"core_attention_bias_type": "post_scale_bias", "core_attention_bias": masks.added}
        attended: torch.Tensor = self.core_attention(query, key, value, masks.hidden, attn_mask_type=mask_type, **bias)
        return attended

    def _attend_with_weights(self, parts: list[torch.Tensor], masks: Masks) -> tuple[torch.Tensor, torch.Tensor]:
        each = parts[0].chunk(3, 2) if len(parts) == 1 else parts
        query, key, value = (self._heads(part).transpose(1, 2) for part in each)
        weights = functional.dropout(masks.weights(query, key), self.dropout, self.training)
        return (weights @ value).transpose(1, 2).flatten(2), weights

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if is_causal and attn_mask is None:
            raise RuntimeError("MultiheadAttention: expected attn_mask with is_causal=True, got None")
        batched = query.dim() == 3
        is_self = query is key and key is value and self.in_proj_weight is not None

        def batch_first(x: torch.Tensor) -> torch.Tensor:
            return x[None] if not batched else x if self.batch_first else x.transpose(0, 1)

        if is_self:
            parts = [self.in_proj(batch_first(query))]
        else:
            parts = [self.query(batch_first(query)), self.key(batch_first(key)), self.value(batch_first(value))]
        causal = is_causal and key_padding_mask is None and not need_weights
        masks = Masks(parts[0].shape[0], self.num_heads, key_padding_mask, None if causal else attn_mask)
        weights = None
        if need_weights:
            attended, weights = self._attend_with_weights(parts, masks)
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            attended = self._attend(parts, masks, causal)
        output = self.out_proj(attended)
        if not batched:
            return output[0], None if weights is None else weights[0]
        return output if self.batch_first else output.transpose(0, 1), weights


def _projection(attention: torch.nn.MultiheadAttention, part: int | None) -> _Projection:
    weight = attention.out_proj.weight
    columns = attention.embed_dim if part is None else (attention.embed_dim, attention.kdim, attention.vdim)[part]
    rows = attention.embed_dim * (3 if part is None else 1)
    bias = attention.in_proj_bias is not None
    projection = _Projection(columns, rows, bias=bias, params_dtype=weight.dtype, device="meta")
    projection._made_with["device"] = weight.device
    projection._initializers = {}
    projection._parameters.clear()
    for name, buffer in state_on(projection, weight.device).items():
        projection._buffers[name] = buffer
    projection.__dict__.update(_attention=attention, _part=part)  # not a child
    return projection.train(attention.training)


def swap_attention(module: torch.nn.MultiheadAttention) -> None:
    """module: exactly a torch.nn.MultiheadAttention. Its out_proj changes with it."""
    swap_linear(module.out_proj)
    core = te.DotProductAttention(
        module.num_heads, module.head_dim, attention_dropout=module.dropout, qkv_format="bshd", attn_mask_type="no_mask"
    )
    names: dict[str, int | None] = {"query": 0, "key": 1, "value": 2}
    if module.in_proj_weight is not None:
        names = {"in_proj": None, **names}
    children = {name: _projection(module, part) for name, part in names.items()}
    swap(module, ConvertedMultiheadAttention, children={**children, "core_attention": core.train(module.training)})
