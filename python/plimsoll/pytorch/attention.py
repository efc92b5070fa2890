"""DotProductAttention: FP32 inside, nothing of queries x keys in memory."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from plimsoll.pytorch.arguments import (
    check_choice,
    check_dropout,
    check_positive,
    check_rest,
    check_size,
    check_sizes,
    check_tensor,
)
from plimsoll.pytorch.autocast import high_precision_dtype
from plimsoll.pytorch.extra_state import drop_extra_state
from plimsoll.pytorch.packed_sequences import Packing, attend_each
from plimsoll.pytorch.tensor_parallel import TensorParallel, take_parallel

MASKS = ("no_mask", "causal", "causal_bottom_right", "padding", "padding_causal", "padding_causal_bottom_right", "arbitrary")
CAUSAL = ("causal", "causal_bottom_right")
LAYOUTS = ("sbhd", "bshd", "thd")
_attention = torch.ops.plimsoll.attention.default
_attention_packed = torch.ops.plimsoll.attention_packed.default

MADE_ONLY = {
    "cp_group": None,
    "cp_global_ranks": None,
    "cp_stream": None,
    "cp_comm_type": "p2p",
    "softmax_type": "vanilla",
    "return_max_logit": False,
}
CALLED_ONLY = {
    "alibi_slopes": None,
    "inference_params": None,
    "fp8_output": False,
}
# Hints for CUDA's kernels; and recomputing attention alone, which keeps one number a query beside its output.
CALLED_HINTS = ("max_seqlen_q", "max_seqlen_kv", "pad_between_seqs", "checkpoint_core_attention", "fast_zero_fill")
PACKED = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")


def check_layout(where: str, name: str, layout: str) -> str:
    return check_choice(where, name, layout, LAYOUTS)


def take_packed(where: str, layout: str, rest: dict[str, Any]) -> dict[str, Any]:
    """The arguments of packed sequences out of `rest`."""
    packed = {name: rest.pop(name) for name in PACKED if rest.get(name) is not None}
    if packed and layout != "thd":
        raise NotImplementedError(f"{where}: expected {next(iter(packed))} with qkv_format 'thd' alone, got '{layout}'")
    return packed


def is_causal(mask_type: str) -> bool:
    return mask_type.removeprefix("padding_") in CAUSAL


def check_window(where: str, window_size: tuple[int, int] | None, mask_type: str) -> int:
    """The last keys that a query sees, its own included; 0: all."""
    if window_size is None:
        return 0
    pair = check_sizes(where, "window_size", window_size)
    if len(pair) != 2:
        raise ValueError(f"{where}: expected window_size None or (left, right), got {window_size}")
    if pair in ([-1, -1], [-1, 0]):
        return 0
    left, right = pair
    if left < 0 or right != 0 or not is_causal(mask_type):
        raise NotImplementedError(
            f"{where}: expected window_size None, (-1, -1), (-1, 0) or, with a causal mask, (left, 0), got {window_size} "
            f"with attn_mask_type '{mask_type}'"
        )
    return left + 1


def _bool_mask(attention_mask: Any, mask_type: str) -> torch.Tensor:
    # Cross-attention brings masks of queries and keys; a masked query's row is the caller's to ignore.
    mask = attention_mask[-1] if isinstance(attention_mask, (tuple, list)) and attention_mask else attention_mask
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, torch.Tensor) else mask
        raise TypeError(f"DotProductAttention: expected attention_mask of bool (True = masked) for '{mask_type}', got {got}")
    return mask


def _length(mask: torch.Tensor, tokens: int) -> torch.Tensor:
    """[..., 1, 1]: how many columns of a padding mask [..., rows, tokens] are not masked for all rows."""
    if mask.dim() == 0 or mask.shape[-1] != tokens:
        raise ValueError(f"DotProductAttention: expected attention_mask [..., {tokens}], got {list(mask.shape)}")
    seen = ~mask if mask.dim() < 2 else (~mask).any(-2, keepdim=True)
    return seen.sum(-1, keepdim=True)


def _own_diagonals(attention_mask: Any, mask: torch.Tensor, queries: int, keys: int, window: int) -> torch.Tensor:
    """The mask of "padding_causal_bottom_right": the last query of each sequence that is no padding sees the last such key.
    A mask of keys alone is that of the queries, too, where there are as many; else no query is padding."""
    length: torch.Tensor | int = queries
    if isinstance(attention_mask, (tuple, list)):
        length = _length(_bool_mask(attention_mask[:1], "padding_causal_bottom_right"), queries)
    elif queries == keys:
        length = _length(mask, queries)
    key = torch.arange(keys, device=mask.device)
    last = torch.arange(queries, device=mask.device)[:, None] + (_length(mask, keys) - length)
    hidden = mask | (key > last)
    return hidden | (key <= last - window) if window else hidden


def mask_rules(mask_type: str, attention_mask: Any, queries: int, keys: int, window: int) -> dict[str, Any]:
    """mask, mask_type ("no_mask", "causal" or "causal_bottom_right") and window as the operator wants them."""
    uses_mask = mask_type.startswith("padding") or mask_type == "arbitrary"
    mask = _bool_mask(attention_mask, mask_type) if uses_mask else None
    if mask is not None and mask_type == "padding_causal_bottom_right":
        return {"mask": _own_diagonals(attention_mask, mask, queries, keys, window), "mask_type": "no_mask", "window": 0}
    return {
        "mask": mask,
        "mask_type": mask_type.removeprefix("padding_") if is_causal(mask_type) else "no_mask",
        "window": window,
    }


class DotProductAttention(torch.nn.Module):
    """softmax(scale Q K^T + bias, masked) V.

    attn_mask_type: "no_mask", "causal" (aligned to the first key; "causal_bottom_right": to the last), "padding" (with an
    attention_mask that says which keys nobody may see), "padding_causal", "arbitrary". window_size: with a causal mask,
    (left, 0): a query sees its own key and `left` before it. softmax_scale: by default 1 / sqrt(kv_channels). tp_size: of
    that many ranks, each has its share of the heads.
    """

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int,
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        *,
        layer_number: int | None = None,
        attention_type: str = "self",
        softmax_scale: float | None = None,
        **rest: Any,
    ) -> None:
        where = type(self).__name__
        parallel = TensorParallel(where, True, **take_parallel(rest))
        check_rest(where, rest, MADE_ONLY)
        super().__init__()
        self.num_attention_heads = check_size(where, "num_attention_heads", num_attention_heads, 1)
        self.kv_channels = check_size(where, "kv_channels", kv_channels, 1)
        self.num_gqa_groups = num_attention_heads if num_gqa_groups is None else num_gqa_groups
        if check_size(where, "num_gqa_groups", self.num_gqa_groups, 1) and num_attention_heads % self.num_gqa_groups:
            raise ValueError(f"{where}: expected num_gqa_groups that divides {num_attention_heads} heads, got {num_gqa_groups}")
        self.attention_dropout = check_dropout(where, "attention_dropout", attention_dropout)
        self.qkv_format = check_layout(where, "qkv_format", qkv_format)
        self.attn_mask_type = check_choice(where, "attn_mask_type", attn_mask_type, MASKS)
        check_window(where, window_size, attn_mask_type)
        self.window_size = window_size
        self.attention_type = check_choice(where, "attention_type", attention_type, ("self", "cross"))
        self.layer_number = layer_number
        self.softmax_scale = None if softmax_scale is None else check_positive(where, "softmax_scale", softmax_scale)
        self._parallel = parallel
        self.num_attention_heads = parallel.part("num_attention_heads", self.num_attention_heads)
        self.num_gqa_groups = parallel.part("num_gqa_groups", self.num_gqa_groups)

    def _check_heads(self, name: str, x: torch.Tensor, heads: int, layout: str) -> None:
        check_tensor("DotProductAttention", name, x)
        if x.dim() != len(layout) or x.shape[-2:] != (heads, self.kv_channels):
            first = {"sbhd": "seq, batch", "bshd": "batch, seq", "thd": "tokens"}[layout]
            raise ValueError(f"DotProductAttention: expected {name} [{first}, {heads}, {self.kv_channels}], got {list(x.shape)}")

    def _window(self, where: str, window_size: tuple[int, int] | None, mask_type: str) -> int:
        return check_window(where, self.window_size if window_size is None else window_size, mask_type)

    def _options(self, bias: torch.Tensor | None, rules: dict[str, Any]) -> dict[str, Any]:
        dropout = self.attention_dropout if self.training else 0.0
        if dropout > 0 and torch.compiler.is_compiling():  # the seed would be drawn once, while tracing
            raise NotImplementedError(f"DotProductAttention: expected attention_dropout=0.0 under torch.compile, got {dropout}")
        scale = self.softmax_scale or 0.0
        return {"bias": bias, "scale": scale, "dropout": dropout, **rules}

    def _dropout_state(self) -> AbstractContextManager[Any]:
        """Ranks that share the heads drop other weights each; with sequence_parallel that is the caller's concern."""
        drops = self.training and self.attention_dropout > 0 and not self._parallel.sequence
        return self._parallel.fork() if drops else nullcontext()

    def forward(
        self,
        query_layer: torch.Tensor,
        key_layer: torch.Tensor,
        value_layer: torch.Tensor,
        attention_mask: Any = None,
        *,
        qkv_format: str | None = None,
        attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: torch.Tensor | None = None,
        **rest: Any,
    ) -> torch.Tensor:
        """query_layer [seq, batch, heads, kv_channels] (bshd: [batch, seq, ...]; thd: [tokens, ...], with cu_seqlens_q and
        cu_seqlens_kv), key_layer and value_layer alike with num_gqa_groups heads -> the same with heads * kv_channels in
        the high-precision dtype of the scope, outside scopes in that of the query. A query that may see no key gives 0.
        The mask type "causal" holds within each packed sequence; their padding needs no mask."""
        where = "DotProductAttention.forward"
        layout = self.qkv_format if qkv_format is None else check_layout(where, "qkv_format", qkv_format)
        packed = take_packed(where, layout, rest)
        check_rest(where, rest, CALLED_ONLY, CALLED_HINTS)
        mask_type = attn_mask_type or self.attn_mask_type
        check_choice(where, "attn_mask_type", mask_type, MASKS)
        window = self._window(where, window_size, mask_type)
        check_choice(where, "core_attention_bias_type", core_attention_bias_type, ("no_bias", "post_scale_bias"))
        biased = core_attention_bias_type == "post_scale_bias"
        bias = check_tensor(where, "core_attention_bias", core_attention_bias) if biased else None
        self._check_heads("query_layer", query_layer, self.num_attention_heads, layout)
        self._check_heads("key_layer", key_layer, self.num_gqa_groups, layout)
        self._check_heads("value_layer", value_layer, self.num_gqa_groups, layout)
        dtype = high_precision_dtype(query_layer)
        if layout == "thd":
            if bias is not None or mask_type == "arbitrary":
                what = "core_attention_bias" if bias is not None else "attn_mask_type='arbitrary'"
                raise NotImplementedError(f"{where}: expected no {what} with qkv_format 'thd'")
            tensors = [x.to(dtype) for x in (query_layer, key_layer, value_layer)]
            rule = mask_type.replace("padding_", "").replace("padding", "no_mask")
            return self._attend_packed(tensors, packed, rule, window)
        to_heads_first = (1, 2, 0, 3) if layout == "sbhd" else (0, 2, 1, 3)
        query, key, value = (x.to(dtype).permute(to_heads_first) for x in (query_layer, key_layer, value_layer))
        rules = mask_rules(mask_type, attention_mask, query.shape[2], key.shape[2], window)
        with self._dropout_state():
            attended: torch.Tensor = _attention(query, key, value, **self._options(bias, rules))
        return attended.permute((2, 0, 1, 3) if layout == "sbhd" else (0, 2, 1, 3)).flatten(2)

    def _attend_packed(self, tensors: list[torch.Tensor], packed: dict[str, Any], mask_type: str, window: int) -> torch.Tensor:
        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            rules = mask_rules(mask_type, None, query.shape[2], key.shape[2], window)
            with self._dropout_state():
                attended: torch.Tensor = _attention(query, key, value, **self._options(None, rules))
            return attended

        query, key, value = tensors
        queries, keys = (
            Packing(name, packed.get(name), packed.get(f"{name}_padded"), x.shape[0])
            for name, x in (("cu_seqlens_q", query), ("cu_seqlens_kv", key))
        )
        return attend_each(attend, (query, queries), key, value, keys).flatten(1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        drop_extra_state(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def forward_packed(
        self,
        qkv: torch.Tensor,
        mask_type: str,
        attention_mask: Any,
        interleaved: bool,
        window_size: tuple[int, int] | None = None,
    ) -> torch.Tensor:
        """The same on the fused projection [seq, batch, heads + 2 groups, kv_channels] (bshd: [batch, seq, ...]), whose
        gradient is then one tensor. interleaved: query, key, value of each head in turn, where heads == groups."""
        heads, groups = self.num_attention_heads, self.num_gqa_groups
        batch_first = qkv.transpose(0, 1) if self.qkv_format == "sbhd" else qkv
        window = self._window("DotProductAttention.forward", window_size, mask_type)
        rules = mask_rules(mask_type, attention_mask, batch_first.shape[1], batch_first.shape[1], window)
        wide = batch_first.to(high_precision_dtype(qkv))
        with self._dropout_state():
            attended: torch.Tensor = _attention_packed(
                wide, heads=heads, groups=groups, interleaved=interleaved, **self._options(None, rules)
            )
        return (attended.transpose(0, 1) if self.qkv_format == "sbhd" else attended).flatten(2)
