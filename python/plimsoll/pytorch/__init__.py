"""Transformer Engine's interface: ``import plimsoll.pytorch as te``."""

from plimsoll.pytorch.attention import DotProductAttention
from plimsoll.pytorch.autocast import autocast, fp8_autocast
from plimsoll.pytorch.layer_norm_linear import LayerNormLinear
from plimsoll.pytorch.layer_norm_mlp import LayerNormMLP
from plimsoll.pytorch.left_out import (
    GroupedLinear,
    checkpoint,
    fp8_model_init,
    make_graphed_callables,
    onnx_export,
    quantized_model_init,
)
from plimsoll.pytorch.linear import Linear
from plimsoll.pytorch.multihead_attention import MultiheadAttention
from plimsoll.pytorch.norm import LayerNorm, RMSNorm
from plimsoll.pytorch.transformer_layer import TransformerLayer

__all__ = [
    "DotProductAttention",
    "GroupedLinear",
    "LayerNorm",
    "LayerNormLinear",
    "LayerNormMLP",
    "Linear",
    "MultiheadAttention",
    "RMSNorm",
    "TransformerLayer",
    "autocast",
    "checkpoint",
    "fp8_autocast",
    "fp8_model_init",
    "make_graphed_callables",
    "onnx_export",
    "quantized_model_init",
]
