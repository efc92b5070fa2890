"""MultiheadAttention: norm, projections of query, key and value, attention, output projection."""

from __future__ import annotations

from typing import Any

import torch

from plimsoll.pytorch.arguments import HINTS, ONLY, UB, check_choice, check_rest, check_size, check_tensor
from plimsoll.pytorch.attention import (
    CALLED_HINTS,
    CALLED_ONLY,
    MASKS,
    DotProductAttention,
    check_layout,
    check_window,
    take_packed,
)
from plimsoll.pytorch.layer_norm_linear import LayerNormLinear
from plimsoll.pytorch.linear import Linear
from plimsoll.pytorch.parts import runs_alone, sum_of
from plimsoll.pytorch.qk_norm import new_qk_norm
from plimsoll.pytorch.rotary import RotaryEmbedding, turn_query_and_key
from plimsoll.pytorch.scaled_module import Initializer, normal
from plimsoll.pytorch.tensor_parallel import Parallel, Segments, TensorParallel, take_parallel


class MultiheadAttention(Parallel):
    """Children: layernorm_qkv (qkv without input_layernorm), core_attention, proj; cross-attention has layernorm_query
    (query_layer) and key_value in place of the first.

    fuse_qkv_params: one weight in place of query_weight, key_weight and value_weight. Its rows with
    qkv_weight_interleaved: for each group its queries, key, value; else all of q, then k, then v. attention_type "cross":
    keys and values come from encoder_output. set_parallel_mode: the ranks of tp_group share the heads, as in Linear.
    qk_norm_type: q_norm and k_norm (None without) act on each head's query and key over its kv_channels:
    "L2Normalization" (x / sqrt(sum(x^2) + qk_norm_eps), no weights), "RMSNorm" or "LayerNorm"; after the rotary embedding,
    or before it with qk_norm_before_rope. Ranks that share the heads have the same weights of these norms, and each a
    gradient from its heads, marked `sequence_parallel` as one to be summed over tp_group.
    """

    _plain_arguments = ("rotary_pos_emb",)  # for autoscale(): 16 bits hold no angle of hundreds of turns

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        kv_channels: int | None = None,
        attention_dropout: float = 0.1,
        layernorm_epsilon: float = 1e-5,
        *,
        init_method: Initializer | None = None,
        output_layer_init_method: Initializer | None = None,
        layer_number: int | None = None,
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        num_gqa_groups: int | None = None,
        params_dtype: torch.dtype | None = None,
        return_bias: bool = False,
        return_layernorm_output: bool = False,
        input_layernorm: bool = False,
        attention_type: str = "self",
        fuse_wgrad_accumulation: bool = False,
        set_parallel_mode: bool = False,
        fuse_qkv_params: bool = False,
        zero_centered_gamma: bool = False,
        qkv_weight_interleaved: bool = True,
        bias: bool = True,
        normalization: str = "LayerNorm",
        device: torch.device | str | None = None,
        qkv_format: str = "sbhd",
        rotary_pos_interleaved: bool = False,
        qk_norm_type: str | None = None,
        qk_norm_eps: float = 1e-6,
        qk_norm_before_rope: bool = False,
        name: str | None = None,
        **rest: Any,
    ) -> None:
        where = type(self).__name__
        parallel = take_parallel(rest)
        check_rest(where, rest, {**ONLY, **UB}, HINTS)
        super().__init__()
        self._parallel = TensorParallel(where, set_parallel_mode, **parallel)
        self.hidden_size = check_size(where, "hidden_size", hidden_size, 1)
        heads = check_size(where, "num_attention_heads", num_attention_heads, 1)
        if kv_channels is not None:
            check_size(where, "kv_channels", kv_channels, 1)
        if num_gqa_groups is not None and heads % check_size(where, "num_gqa_groups", num_gqa_groups, 1):
            raise ValueError(f"{where}: expected num_gqa_groups that divides {heads} heads, got {num_gqa_groups}")
        if kv_channels is None and hidden_size % heads:
            raise ValueError(f"{where}: expected num_attention_heads that divides {hidden_size}, got {heads}")
        self.kv_channels = kv_channels or hidden_size // heads
        groups = num_gqa_groups or heads
        self.num_attention_heads = self._parallel.part("num_attention_heads", heads)  # of this rank
        self.num_gqa_groups = self._parallel.part("num_gqa_groups", groups)
        self.attn_mask_type = check_choice(where, "attn_mask_type", attn_mask_type, MASKS)
        check_window(where, window_size, attn_mask_type)
        self.attention_type = check_choice(where, "attention_type", attention_type, ("self", "cross"))
        self.input_layernorm = input_layernorm
        self.return_bias = return_bias
        self.return_layernorm_output = return_layernorm_output
        self.qkv_format = check_layout(where, "qkv_format", qkv_format)
        self.interleaved = fuse_qkv_params and qkv_weight_interleaved
        self.rotary_pos_interleaved = rotary_pos_interleaved
        self.qk_norm_before_rope = qk_norm_before_rope
        self.name = name

        query_rows, key_rows = heads * self.kv_channels, groups * self.kv_channels
        made: dict[str, Any] = {
            "params_dtype": params_dtype,
            "device": device,
            "bias": bias,
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
            **parallel,
        }
        linear: dict[str, Any] = {**made, "parallel_mode": "column" if set_parallel_mode else None}
        norm_linear: dict[str, Any] = {
            **linear,
            "eps": layernorm_epsilon,
            "normalization": normalization,
            "zero_centered_gamma": zero_centered_gamma,
        }

        def in_parts(*rows: int) -> Initializer | None:
            """Initialiser by parts: of a fused weight whose rows are not interleaved each rank has its part of queries, keys
            and values."""
            fused = fuse_qkv_params and not self.interleaved
            return Segments(init_method or normal, rows) if fused else init_method

        if attention_type == "self":
            parts = None if fuse_qkv_params else {"query": query_rows, "key": key_rows, "value": key_rows}
            split: dict[str, Any] = {"parameters_split": parts, "init_method": in_parts(query_rows, key_rows, key_rows)}
            rows = query_rows + 2 * key_rows
            if input_layernorm:
                self.layernorm_qkv = LayerNormLinear(hidden_size, rows, **split, **norm_linear)
            else:
                self.qkv = Linear(hidden_size, rows, **split, **linear)
        else:
            if input_layernorm:
                self.layernorm_query = LayerNormLinear(hidden_size, query_rows, init_method=init_method, **norm_linear)
            else:
                self.query_layer = Linear(hidden_size, query_rows, init_method=init_method, **linear)
            parts = None if fuse_qkv_params else {"key": key_rows, "value": key_rows}
            split = {"parameters_split": parts, "init_method": in_parts(key_rows, key_rows)}
            self.key_value = Linear(hidden_size, 2 * key_rows, **split, **linear)
        qk_norm: dict[str, Any] = {
            "size": self.kv_channels,
            "eps": qk_norm_eps,
            "zero_centered_gamma": zero_centered_gamma,
            "of_heads_apart": self.tp_size > 1,
            "params_dtype": params_dtype,
            "device": device,
        }
        self.q_norm = new_qk_norm(where, qk_norm_type, **qk_norm)
        self.k_norm = new_qk_norm(where, qk_norm_type, **qk_norm)
        self.core_attention = DotProductAttention(
            heads,
            self.kv_channels,
            groups,
            attention_dropout,
            self.qkv_format,
            attn_mask_type,
            window_size,
            attention_type=attention_type,
            layer_number=layer_number,
            **{**parallel, "tp_group": None, "tp_size": self.tp_size},
        )
        # Attention keeps its output for its own backward pass, so proj keeps that instead of codes of it.
        self.proj = Linear(
            query_rows,
            hidden_size,
            init_method=output_layer_init_method,
            return_bias=return_bias,
            save_original_input=True,
            parallel_mode="row" if set_parallel_mode else None,
            **made,
        )

    def _split_heads(self, x: torch.Tensor, heads: tuple[int, ...]) -> list[torch.Tensor]:
        """[..., rows] -> for each of `heads`: [..., heads, kv_channels]."""
        if not self.interleaved:
            return list(x.unflatten(-1, (sum(heads), self.kv_channels)).split(heads, -2))
        per_group = [count // self.num_gqa_groups for count in heads]
        grouped = x.unflatten(-1, (self.num_gqa_groups, sum(per_group), self.kv_channels))
        return [part.flatten(-3, -2) for part in grouped.split(per_group, -2)]

    def _project(
        self, module: LayerNormLinear | Linear, hidden: torch.Tensor, residual: torch.Tensor | None, first: bool | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if runs_alone(module, LayerNormLinear):
            assert isinstance(module, LayerNormLinear)
            return module.run(hidden, residual, first)
        total = sum_of(hidden, residual)
        return module(total, is_first_microbatch=first), total

    def _normalize(self, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.q_norm is None or self.k_norm is None:
            return query, key
        return self.q_norm(query), self.k_norm(key)

    def input_norm(self) -> LayerNormLinear | None:
        """The layer that begins with the norm of the input."""
        if not self.input_layernorm:
            return None
        return self.layernorm_qkv if self.attention_type == "self" else self.layernorm_query

    def _attend_self(
        self,
        projected: torch.Tensor,
        mask_type: str,
        mask: Any,
        rotary: RotaryEmbedding | None,
        window_size: tuple[int, int] | None,
        options: dict[str, Any],
    ) -> torch.Tensor:
        heads, groups = self.num_attention_heads, self.num_gqa_groups
        core = self.core_attention
        whole = not options and rotary is None and self.q_norm is None and self.qkv_format != "thd"
        if whole and (not self.interleaved or heads == groups) and runs_alone(core, DotProductAttention):
            packed = projected.unflatten(2, (heads + 2 * groups, self.kv_channels))
            return core.forward_packed(packed, mask_type, mask, self.interleaved, window_size)
        query, key, value = self._split_heads(projected, (heads, groups, groups))
        return self._attend(query, key, value, mask, mask_type, rotary, {**options, "window_size": window_size})

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: Any,
        mask_type: str,
        rotary: RotaryEmbedding | None,
        options: dict[str, Any],
    ) -> torch.Tensor:
        if self.qk_norm_before_rope:
            query, key = self._normalize(query, key)
        if rotary is not None:
            query, key = turn_query_and_key(query, key, rotary, self.qkv_format, self.rotary_pos_interleaved, options)
        if not self.qk_norm_before_rope:
            query, key = self._normalize(query, key)
        attended: torch.Tensor = self.core_attention(query, key, value, mask, attn_mask_type=mask_type, **options)
        return attended

    def run(
        self,
        hidden_states: torch.Tensor,
        residual: torch.Tensor | None = None,
        *,
        attention_mask: Any = None,
        encoder_output: torch.Tensor | None = None,
        attn_mask_type: str | None = None,
        is_first_microbatch: bool | None = None,
        rotary_pos_emb: RotaryEmbedding | None = None,
        window_size: tuple[int, int] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, torch.Tensor]:
        """Output for hidden_states + residual, which comes back second. options: DotProductAttention's arguments
        core_attention_bias_* and cu_seqlens_*."""
        check_tensor("MultiheadAttention", "hidden_states", hidden_states)
        if hidden_states.dim() != len(self.qkv_format) - 1 or hidden_states.shape[-1] != self.hidden_size:
            raise ValueError(
                f"MultiheadAttention: expected hidden_states [seq, batch, {self.hidden_size}] "
                f"(bshd: [batch, seq, ...]; thd: [tokens, ...]), got {list(hidden_states.shape)}"
            )
        mask_type = check_choice("MultiheadAttention", "attn_mask_type", attn_mask_type or self.attn_mask_type, MASKS)
        if self.attention_type == "self":
            projection = self.layernorm_qkv if self.input_layernorm else self.qkv
            projected, total = self._project(projection, hidden_states, residual, is_first_microbatch)
            attended = self._attend_self(projected, mask_type, attention_mask, rotary_pos_emb, window_size, options or {})
        else:
            if encoder_output is None:
                raise ValueError("MultiheadAttention: expected encoder_output for cross-attention, got None")
            projection = self.layernorm_query if self.input_layernorm else self.query_layer
            projected, total = self._project(projection, hidden_states, residual, is_first_microbatch)
            query = projected.unflatten(-1, (self.num_attention_heads, self.kv_channels))
            groups = self.num_gqa_groups
            both = self.key_value(encoder_output, is_first_microbatch=is_first_microbatch)
            key, value = self._split_heads(both, (groups, groups))
            attended = self._attend(
                query, key, value, attention_mask, mask_type, rotary_pos_emb, {**(options or {}), "window_size": window_size}
            )
        return self.proj(attended, is_first_microbatch=is_first_microbatch), total

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Any = None,
        encoder_output: torch.Tensor | None = None,
        attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        is_first_microbatch: bool | None = None,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: torch.Tensor | None = None,
        rotary_pos_emb: RotaryEmbedding | None = None,
        **rest: Any,
    ) -> Any:
        """hidden_states [seq, batch, hidden_size] (bshd: [batch, seq, ...]; thd: [tokens, ...], with cu_seqlens_q and
        cu_seqlens_kv) -> the same shape; with return_bias and return_layernorm_output a tuple. Masks as in
        DotProductAttention. rotary_pos_emb: angles of RotaryPositionEmbedding, or a pair for queries and keys."""
        where = "MultiheadAttention.forward"
        options = take_packed(where, self.qkv_format, rest)
        check_rest(where, rest, CALLED_ONLY, CALLED_HINTS)
        if core_attention_bias_type != "no_bias":
            options |= {"core_attention_bias_type": core_attention_bias_type, "core_attention_bias": core_attention_bias}
        output, _ = self.run(
            hidden_states,
            attention_mask=attention_mask,
            encoder_output=encoder_output,
            attn_mask_type=attn_mask_type,
            is_first_microbatch=is_first_microbatch,
            rotary_pos_emb=rotary_pos_emb,
            window_size=window_size,
            options=options,
        )
        results = list(output) if self.return_bias else [output]
        norm = self.input_norm()
        if norm is not None and self.return_layernorm_output:
            results.append(norm.normalized(hidden_states))
        return results[0] if len(results) == 1 else tuple(results)
