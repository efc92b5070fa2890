"""TransformerLayer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from plimsoll.pytorch.arguments import HINTS, ONLY, check_choice, check_dropout, check_rest, check_tensor
from plimsoll.pytorch.attention import CALLED_HINTS, CALLED_ONLY, check_layout, take_packed
from plimsoll.pytorch.autocast import high_precision_dtype
from plimsoll.pytorch.layer_norm_mlp import LayerNormMLP
from plimsoll.pytorch.multihead_attention import MultiheadAttention
from plimsoll.pytorch.norm import NORMS, Normed
from plimsoll.pytorch.parts import runs_alone, sum_of
from plimsoll.pytorch.rotary import RotaryEmbedding
from plimsoll.pytorch.scaled_module import Initializer
from plimsoll.pytorch.tensor_parallel import Parallel, TensorParallel, take_parallel

LAYER_ONLY = {
    **ONLY,
    "ub_tp_comm_overlap": False,
    "ub_overlap_ag": True,
    "ub_overlap_rs": True,
    "ub_overlap_rs_dgrad": False,
    "ub_bulk_dgrad": True,
    "ub_bulk_wgrad": True,
    "softmax_type": "vanilla",
}


class TransformerLayer(Parallel):
    """One pre-norm block. Children: self_attention, inter_attention (layer_type "decoder"), layernorm_mlp.

    Residual additions are part of the norm that follows them. Hidden states come in as [seq, batch, hidden_size], with
    attn_input_format "bshd" as [batch, seq, hidden_size]. set_parallel_mode: the ranks of tp_group share heads and
    features, as in Linear; with sequence_parallel each has its part of the first dimension, before, between and after.

    apply_residual_connection_post_layernorm: what a norm made, and not its input, is added to the branch behind it.
    output_layernorm: attention has no norm of its own; `layernorm` follows the last addition. parallel_attention_mlp:
    hidden + attention(hidden) + MLP(hidden). drop_path_rate: share of the samples that a branch skips in training; what
    stays grows by 1 / (1 - rate). Larsson et al., FractalNet, 2017; Huang et al., stochastic depth, 2016.
    """

    _plain_arguments = ("rotary_pos_emb",)  # for autoscale(): 16 bits hold no angle of hundreds of turns

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        num_attention_heads: int,
        num_gqa_groups: int | None = None,
        layernorm_epsilon: float = 1e-5,
        hidden_dropout: float = 0.1,
        attention_dropout: float = 0.1,
        *,
        init_method: Initializer | None = None,
        output_layer_init_method: Initializer | None = None,
        layer_number: int | None = None,
        kv_channels: int | None = None,
        self_attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        enc_dec_attn_mask_type: str = "no_mask",
        enc_dec_window_size: tuple[int, int] | None = None,
        params_dtype: torch.dtype | None = None,
        layer_type: str = "encoder",
        fuse_wgrad_accumulation: bool = False,
        set_parallel_mode: bool = False,
        fuse_qkv_params: bool = False,
        zero_centered_gamma: bool = False,
        qkv_weight_interleaved: bool = True,
        bias: bool = True,
        activation: str = "gelu",
        activation_params: Mapping[str, float] | None = None,
        normalization: str = "LayerNorm",
        device: torch.device | str | None = None,
        attn_input_format: str = "sbhd",
        rotary_pos_interleaved: bool = False,
        apply_residual_connection_post_layernorm: bool = False,
        output_layernorm: bool = False,
        parallel_attention_mlp: bool = False,
        drop_path_rate: float = 0.0,
        qk_norm_type: str | None = None,
        qk_norm_eps: float = 1e-6,
        qk_norm_before_rope: bool = False,
        name: str | None = None,
        **rest: Any,
    ) -> None:
        where = type(self).__name__
        parallel = take_parallel(rest)
        check_rest(where, rest, LAYER_ONLY, HINTS)
        check_layout(where, "attn_input_format", attn_input_format)
        super().__init__()
        self.layer_type = check_choice(where, "layer_type", layer_type, ("encoder", "decoder"))
        self.hidden_dropout = check_dropout(where, "hidden_dropout", hidden_dropout, may_be_all=True)
        self.drop_path_rate = check_dropout(where, "drop_path_rate", drop_path_rate)
        if drop_path_rate > 0 and attn_input_format == "thd":
            raise NotImplementedError(f"{where}: expected drop_path_rate 0 with attn_input_format 'thd', got {drop_path_rate}")
        self._layout = attn_input_format
        self._batch_dim = 0 if attn_input_format == "bshd" else 1
        self.apply_residual_connection_post_layernorm = apply_residual_connection_post_layernorm
        self.output_layernorm = output_layernorm
        self.parallel_attention_mlp = parallel_attention_mlp
        if parallel_attention_mlp:
            for name_of_other, other, expected in (
                ("layer_type", layer_type, "encoder"),
                ("apply_residual_connection_post_layernorm", apply_residual_connection_post_layernorm, False),
                ("output_layernorm", output_layernorm, False),
            ):
                if other != expected:
                    raise ValueError(f"{where}: expected {name_of_other} {expected!r} with parallel_attention_mlp, got {other!r}")
        self.layer_number = layer_number
        self.name = name
        made: dict[str, Any] = {
            "init_method": init_method,
            "output_layer_init_method": output_layer_init_method,
            "params_dtype": params_dtype,
            "zero_centered_gamma": zero_centered_gamma,
            "bias": bias,
            "normalization": normalization,
            "device": device,
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
            "set_parallel_mode": set_parallel_mode,
            **parallel,
        }
        self._parallel = TensorParallel(where, set_parallel_mode, **parallel)
        attention: dict[str, Any] = {
            **made,
            "kv_channels": kv_channels,
            "attention_dropout": attention_dropout,
            "layernorm_epsilon": layernorm_epsilon,
            "layer_number": layer_number,
            "num_gqa_groups": num_gqa_groups,
            "input_layernorm": not output_layernorm,
            "fuse_qkv_params": fuse_qkv_params,
            "qkv_weight_interleaved": qkv_weight_interleaved,
            "qkv_format": attn_input_format,
            "rotary_pos_interleaved": rotary_pos_interleaved,
            "qk_norm_type": qk_norm_type,
            "qk_norm_eps": qk_norm_eps,
            "qk_norm_before_rope": qk_norm_before_rope,
        }
        self.self_attention = MultiheadAttention(
            hidden_size, num_attention_heads, attn_mask_type=self_attn_mask_type, window_size=window_size, **attention
        )
        if layer_type == "decoder":
            self.inter_attention = MultiheadAttention(
                hidden_size,
                num_attention_heads,
                attn_mask_type=enc_dec_attn_mask_type,
                window_size=enc_dec_window_size,
                attention_type="cross",
                **attention,
            )
        self.layernorm_mlp = LayerNormMLP(
            hidden_size,
            ffn_hidden_size,
            eps=layernorm_epsilon,
            activation=activation,
            activation_params=activation_params,
            **made,
        )
        if output_layernorm:
            self.layernorm = NORMS[normalization](
                hidden_size,
                layernorm_epsilon,
                sequence_parallel=self._parallel.sequence or None,
                params_dtype=params_dtype,
                zero_centered_gamma=zero_centered_gamma,
                device=device,
            )

    def _attend(
        self,
        attention: MultiheadAttention,
        hidden: torch.Tensor,
        residual: torch.Tensor | None,
        options: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output of this attention for hidden + residual, and that sum."""
        if runs_alone(attention, MultiheadAttention):
            return attention.run(hidden, residual, options=options, **arguments)
        total = sum_of(hidden, residual)
        return attention(total, **arguments, **(options or {})), total

    def _mlp(self, hidden: torch.Tensor, residual: torch.Tensor | None, first: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
        mlp = self.layernorm_mlp
        if runs_alone(mlp, LayerNormMLP):
            return mlp.run(hidden, residual, first)
        total = sum_of(hidden, residual)
        return mlp(total, is_first_microbatch=first), total

    def _branch(self, x: torch.Tensor) -> torch.Tensor:
        """Dropout of a branch's output, and of the branch for a part of the samples."""
        x = torch.dropout(x, self.hidden_dropout, self.training)
        if not self.training or self.drop_path_rate == 0:
            return x
        shape = [1] * x.dim()
        shape[self._batch_dim] = x.shape[self._batch_dim]
        stays = torch.rand(shape, device=x.device) >= self.drop_path_rate
        return x * (stays / (1 - self.drop_path_rate)).to(x.dtype)

    def _residual(self, branch: Any, total: torch.Tensor) -> torch.Tensor:
        """The other summand of the attention or MLP that began with its norm of total, if it has one."""
        if not self.apply_residual_connection_post_layernorm:
            return total
        norm: Normed | None = branch.input_norm() if hasattr(branch, "input_norm") else branch
        return total if norm is None else norm.normalized(total)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Any = None,
        self_attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        encoder_output: torch.Tensor | None = None,
        enc_dec_attn_mask: Any = None,
        enc_dec_attn_mask_type: str | None = None,
        enc_dec_window_size: tuple[int, int] | None = None,
        is_first_microbatch: bool | None = None,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: torch.Tensor | None = None,
        rotary_pos_emb: RotaryEmbedding | None = None,
        **rest: Any,
    ) -> torch.Tensor:
        """hidden_states [seq, batch, hidden_size] (bshd: [batch, seq, ...]; thd: [tokens, ...], with cu_seqlens_q and
        cu_seqlens_kv) -> the same shape, in the high-precision dtype of the scope. Masks as in DotProductAttention, angles
        as in MultiheadAttention; the attention bias and the angles are those of self-attention."""
        where = "TransformerLayer.forward"
        options = take_packed(where, self._layout, rest)
        if options and self.layer_type == "decoder":
            raise NotImplementedError(f"{where}: expected layer_type 'encoder' with qkv_format 'thd', got 'decoder'")
        check_rest(where, rest, CALLED_ONLY, CALLED_HINTS)
        if core_attention_bias_type != "no_bias":
            options |= {"core_attention_bias_type": core_attention_bias_type, "core_attention_bias": core_attention_bias}
        check_tensor("TransformerLayer", "hidden_states", hidden_states)
        hidden = hidden_states.to(high_precision_dtype(hidden_states))
        attended, total = self._attend(
            self.self_attention,
            hidden,
            None,
            attention_mask=attention_mask,
            attn_mask_type=self_attn_mask_type,
            is_first_microbatch=is_first_microbatch,
            rotary_pos_emb=rotary_pos_emb,
            window_size=window_size,
            options=options,
        )
        if self.parallel_attention_mlp:
            output, _ = self._mlp(hidden, None, is_first_microbatch)
            return self._branch(attended + output) + hidden
        residual = self._residual(self.self_attention, total)
        hidden = self._branch(attended)
        if self.layer_type == "decoder":
            # Without a norm there is nothing that would begin with the addition.
            attended, total = self._attend(
                self.inter_attention,
                hidden + residual if self.output_layernorm else hidden,
                None if self.output_layernorm else residual,
                attention_mask=enc_dec_attn_mask,
                encoder_output=encoder_output,
                attn_mask_type=enc_dec_attn_mask_type,
                is_first_microbatch=is_first_microbatch,
                window_size=enc_dec_window_size,
            )
            residual = self._residual(self.inter_attention, total)
            hidden = self._branch(attended)
        output, total = self._mlp(hidden, residual, is_first_microbatch)
        output = self._branch(output) + self._residual(self.layernorm_mlp, total)
        return self.layernorm(output) if self.output_layernorm else output
