"""Transformer Engine's interface: ``import plimsoll.pytorch as te``."""

import plimsoll.pytorch.flop_counts
import plimsoll.pytorch.recipe_functions  # noqa: F401  implements two operators
from plimsoll.amp.recompute import checkpoint_contexts
from plimsoll.pytorch.attention import DotProductAttention
from plimsoll.pytorch.autocast import autocast, fp8_autocast
from plimsoll.pytorch.checkpoint import checkpoint
from plimsoll.pytorch.grouped_linear import GroupedLinear
from plimsoll.pytorch.layer_norm_linear import LayerNormLinear
from plimsoll.pytorch.layer_norm_mlp import LayerNormMLP
from plimsoll.pytorch.left_out import make_graphed_callables, onnx_export
from plimsoll.pytorch.linear import Linear
from plimsoll.pytorch.moe import moe_permute, moe_unpermute
from plimsoll.pytorch.multihead_attention import MultiheadAttention
from plimsoll.pytorch.norm import LayerNorm, RMSNorm
from plimsoll.pytorch.quantized_init import fp8_model_init, quantized_model_init
from plimsoll.pytorch.quantized_tensor import QuantizedTensor
from plimsoll.pytorch.rotary import RotaryPositionEmbedding, apply_rotary_pos_emb
from plimsoll.pytorch.transformer_layer import TransformerLayer

__all__ = [
    "DotProductAttention",
    "GroupedLinear",
    "LayerNorm",
    "LayerNormLinear",
    "LayerNormMLP",
    "Linear",
    "MultiheadAttention",
    "QuantizedTensor",
    "RMSNorm",
    "RotaryPositionEmbedding",
    "TransformerLayer",
    "apply_rotary_pos_emb",
    "autocast",
    "checkpoint",
    "checkpoint_contexts",
    "fp8_autocast",
    "fp8_model_init",
    "make_graphed_callables",
    "moe_permute",
    "moe_unpermute",
    "onnx_export",
    "quantized_model_init",
]
