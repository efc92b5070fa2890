"""docs/python.md: what it says of Transformer Engine's names is so. Each of them is here, with its arguments at their defaults, or in
the table."""

import inspect
import re
from pathlib import Path
from typing import Any

import plimsoll.common.recipe as recipes
import plimsoll.pytorch as te
import pytest
import torch
from plimsoll.pytorch import distributed

ROOT = Path(__file__).parents[2]
HEADING = "## Transformer Engine's names\n"

# Transformer Engine 2: public names of transformer_engine.pytorch, its attention and distributed, and its recipes.
NAMES = """DotProductAttention GroupedLinear LayerNorm LayerNormLinear LayerNormMLP Linear MultiheadAttention RMSNorm TransformerLayer
    RotaryPositionEmbedding apply_rotary_pos_emb autocast fp8_autocast quantized_model_init fp8_model_init checkpoint
    make_graphed_callables onnx_export moe_permute moe_unpermute moe_permute_with_probs moe_sort_chunks_by_index
    moe_sort_chunks_by_index_with_probs Fp8Padding Fp8Unpadding InferenceParams CudaRNGStatesTracker get_cpu_offload_context
    parallel_cross_entropy initialize_ub destroy_ub Float8Tensor QuantizedTensor is_fp8_available is_mxfp8_available ops optimizers
    Format DelayedScaling Float8CurrentScaling Float8BlockScaling MXFP8BlockScaling NVFP4BlockScaling CustomRecipe""".split()

RANKS = {
    "sequence_parallel": False,
    "tp_group": None,
    "tp_size": 1,
    "get_rng_state_tracker": None,
    "fuse_wgrad_accumulation": False,
    "params_dtype": None,
    "name": None,
}
OVERLAP = {
    "ub_overlap_ag": False,
    "ub_overlap_rs": False,
    "ub_bulk_dgrad": False,
    "ub_bulk_wgrad": False,
    "delay_wgrad_compute": False,
}
LINEAR = {**RANKS, **OVERLAP, "init_method": None, "bias": True, "return_bias": False, "ub_name": None, "rng_tracker_name": None}
SPLIT = {"parallel_mode": None, "parameters_split": None, "ub_overlap_rs_dgrad": False, "symmetric_ar_type": None}
NORMED = {"eps": 1e-5, "normalization": "LayerNorm", "return_layernorm_output": False, "zero_centered_gamma": False}
QK_NORM = {"qk_norm_type": None, "qk_norm_eps": 1e-6, "qk_norm_before_rope": False}
LAYER = {
    **RANKS,
    **QK_NORM,
    "init_method": None,
    "output_layer_init_method": None,
    "layer_number": None,
    "kv_channels": None,
    "num_gqa_groups": None,
    "attention_dropout": 0.1,
    "layernorm_epsilon": 1e-5,
    "set_parallel_mode": False,
    "fuse_qkv_params": False,
    "zero_centered_gamma": False,
    "qkv_weight_interleaved": True,
    "bias": True,
    "normalization": "LayerNorm",
}
# (what a call needs, arguments with their defaults beside "device", which is "cuda").
MODULES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "Linear": ((8, 8), {**LINEAR, **SPLIT, "save_original_input": False}),
    "LayerNormLinear": ((8, 8), {**LINEAR, **SPLIT, **NORMED, "return_layernorm_output_gathered": False}),
    "GroupedLinear": ((2, 8, 8), {**RANKS, **OVERLAP, "init_method": None, "bias": True, "parallel_mode": None, "ub_name": None}),
    "LayerNormMLP": (
        (8, 8),
        {
            **LINEAR,
            **NORMED,
            "output_layer_init_method": None,
            "activation": "gelu",
            "activation_params": None,
            "set_parallel_mode": False,
            "checkpoint": False,
            "seq_length": None,
            "micro_batch_size": None,
        },
    ),
    "LayerNorm": ((8,), {"eps": 1e-5, "sequence_parallel": None, "params_dtype": None, "zero_centered_gamma": False}),
    "RMSNorm": ((8,), {"eps": 1e-5, "sequence_parallel": None, "params_dtype": None, "zero_centered_gamma": False}),
    "DotProductAttention": (
        (2, 8),
        {
            "num_gqa_groups": None,
            "attention_dropout": 0.0,
            "qkv_format": "sbhd",
            "attn_mask_type": "causal",
            "sequence_parallel": False,
            "tp_size": 1,
            "get_rng_state_tracker": None,
            "tp_group": None,
            "layer_number": None,
            "attention_type": "self",
            "cp_group": None,
            "cp_global_ranks": None,
            "cp_stream": None,
            "cp_comm_type": "p2p",
            "softmax_scale": None,
            "softmax_type": "vanilla",
            "return_max_logit": False,
        },
    ),
    "MultiheadAttention": (
        (16, 2),
        {
            **LAYER,
            "attn_mask_type": "causal",
            "return_bias": False,
            "return_layernorm_output": False,
            "input_layernorm": False,
            "attention_type": "self",
            "qkv_format": "sbhd",
        },
    ),
    "TransformerLayer": (
        (16, 16, 2),
        {
            **LAYER,
            "hidden_dropout": 0.1,
            "apply_residual_connection_post_layernorm": False,
            "output_layernorm": False,
            "parallel_attention_mlp": False,
            "self_attn_mask_type": "causal",
            "enc_dec_attn_mask_type": "no_mask",
            "layer_type": "encoder",
            "drop_path_rate": 0.0,
            "activation": "gelu",
            "activation_params": None,
            "seq_length": None,
            "micro_batch_size": None,
            "attn_input_format": "sbhd",
        },
    ),
    "RotaryPositionEmbedding": (
        (8,),
        {
            "rotary_percent": 1.0,
            "seq_len_interpolation_factor": None,
            "pretrained_max_position_embeddings": None,
            "rotary_base": 10000.0,
            "interleaved": False,
        },
    ),
    "autocast": ((), {"enabled": True, "calibrating": False, "recipe": None, "amax_reduction_group": None}),
    "quantized_model_init": ((), {"enabled": True, "recipe": None, "preserve_high_precision_init_val": False}),
    "NVFP4BlockScaling": (
        (),
        {
            "disable_rht": False,
            "disable_stochastic_rounding": False,
            "disable_2d_quantization": False,
            "fp4_format": recipes.Format.E2M1,
            "fp8_format": recipes.Format.E4M3,
            "fp8_dpa": False,
            "fp8_mha": False,
        },
    ),
    "DelayedScaling": ((), {"margin": 0, "amax_history_len": 1024, "amax_compute_algo": "max", "reduce_amax": True}),
}
# Arguments of what a test cannot call without tensors, and those whose default is a device's.
OTHERS = {
    "checkpoint": ["use_reentrant", "distribute_saved_activations", "tp_group"],
    "apply_rotary_pos_emb": ["tensor_format", "interleaved", "fused", "cu_seqlens", "cp_size", "start_positions"],
    "moe_permute": ["routing_map", "num_out_tokens", "max_token_num", "map_type"],
    "moe_unpermute": ["row_id_map", "merging_probs", "restore_shape", "map_type"],
    "Linear": ["device", "is_first_microbatch"],
    "DotProductAttention": ["checkpoint_core_attention", "window_size"],
    "LayerNorm": ["normalized_shape"],
    "DelayedScaling": ["backward_override", "fp8_dpa"],
    "Format": ["E5M2"],
    "Float8BlockScaling": ["x_block_scaling_dim"],
    "Float8CurrentScaling": ["fp8_gemm_fprop"],
}


def found(name):
    return next((vars(module)[name] for module in (te, recipes, distributed) if name in vars(module)), None)


def table():
    """{"NAME" or "NAME.argument": (what the page says of "here", what it says differs)}."""
    section = (ROOT / "docs/python.md").read_text().split(HEADING)[1].split("\n## ")[0]
    rows = [re.split(r" \| ", line.strip("| ")) for line in section.splitlines() if line.startswith("| `")]
    assert all(len(row) == 3 and row[2] for row in rows)
    assert len({row[0] for row in rows}) == len(rows) > 30
    return {row[0].strip("`"): (row[1], row[2]) for row in rows}


def test_each_name_is_here_unless_the_table_says_otherwise():
    elsewhere = {key for key, (here, _) in table().items() if here != "the same"}
    assert {name for name in NAMES if found(name) is None} == elsewhere


def test_a_name_that_stands_for_another_is_here():
    for key, (here, _) in table().items():
        assert here in ("the same", "none") or found(here.strip("`")) is not None, key


def test_the_table_is_of_names_that_transformer_engine_has():
    for key in table():
        name, _, argument = key.partition(".")
        assert name in NAMES, key
        assert not argument or argument in MODULES.get(name, ((), {}))[1] or argument in OTHERS[name], key


@pytest.mark.parametrize("name", MODULES)
def test_each_argument_is_here_with_its_default(name):
    needed, arguments = MODULES[name]
    found(name)(*needed, **arguments)
    parameters = inspect.signature(found(name)).parameters
    for argument, default in arguments.items():
        assert argument not in parameters or parameters[argument].default == default, argument
        found(name)(*needed, **{argument: default})
    if issubclass(type(found(name)), type) and issubclass(found(name), torch.nn.Module):
        with pytest.raises(TypeError, match="no_such_argument"):
            found(name)(*needed, no_such_argument=1)


def test_a_name_that_nobody_has_is_noticed():
    assert found("no_such_name") is None
    with pytest.raises(KeyError):
        table()["no_such_name"]
