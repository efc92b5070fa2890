"""A valid call of every operator of ours, for tests to spoil."""

import json
from functools import cache
from typing import Any

import hostile_decoder
import hostile_t5
import plimsoll.pytorch as te
import torch
from hostile_arguments import Made, T, codes, whole_numbers
from hostile_attention import attention, attention_backward, attention_forward, over_codes, packed_backward, packed_forward
from hostile_methods import GROUP, OWNER, folder, method_calls, new, saved_checkpoint
from plimsoll.autoscale.session import new_session

FP32, BF16 = torch.float32, torch.bfloat16
ops, classes = torch.ops.plimsoll, torch.classes.plimsoll
IN_PYTHON = {"recipe_amax", "recipe_inv_scale"}


@cache
def session():
    return new_session()


def scaled(*shape):
    return Made(lambda: ops.autoscale_as_scaled(torch.randn(shape), session()))


def gemm_sizes(draw, kind):
    m, n, k = draw.choice([(3, 5, 7), (17, 33, 64), (40, 70, 130)])
    return {"output": ((m, k), (n, k)), "grad_input": ((m, k), (k, n)), "grad_weight": ((k, m), (k, n))}[kind], n


def gemm(draw):
    kind = draw.choice(["output", "grad_input", "grad_weight"])
    (a, b), n = gemm_sizes(draw, kind)
    return [T(*a), T(*b), draw.choice([None, T(n)]), kind, draw.choice([FP32, BF16])]


BLOCKS = [[0, 0], [1, 0], [1, 32], [4, 8]]


def blocks_of(shape, block):
    return [1 if size == 0 else -(-extent // size) for extent, size in zip(shape, block, strict=True)]


def scale_of(draw, shape, block):
    sizes = blocks_of(shape, block)
    return draw.choice([T(*sizes, fill=1), T(*sizes, dtype=torch.uint8, fill=127)])


def scaled_gemm(draw):
    kind = draw.choice(["output", "grad_input", "grad_weight"])
    (a, b), n = gemm_sizes(draw, kind)
    of_a, of_b = draw.choice(BLOCKS), draw.choice(BLOCKS)
    return [
        codes(*a),
        codes(*b),
        scale_of(draw, a, of_a),
        scale_of(draw, b, of_b),
        "e4m3",
        draw.choice(["e4m3", "e5m2"]),
        of_a,
        of_b,
        draw.choice([None, T(n)]),
        kind,
        FP32,
    ]


def dequantize(draw):
    block = draw.choice(BLOCKS)
    return [codes(6, 40), scale_of(draw, (6, 40), block), draw.choice(["e4m3", "e5m2"]), block, BF16]


def norm_backward(draw):
    kind = draw.choice(["layernorm", "rmsnorm"])
    return [T(3, 2, 20), draw.choice([None, T(3, 2, 20)]), T(3, 2, 20), T(20), T(6), T(6, fill=1), kind, False, 1e-5]


def embedding(draw):
    return [whole_numbers(2, 5, below=11), T(11, 8, grad=True), draw.choice([None, T(9, 8)]), 2]


RECIPES = [
    '"fp32"',
    '"bf16"',
    '"fp8"',
    '"fp8-current"',
    '"fp8-row"',
    '"fp8-block"',
    '"mxfp8"',
    json.dumps({"name": "fp8", "margin": 1}),
    '"nvfp4"',
    '"nvfp4-4over6"',
    '"ms-eden"',
    '"mxfp4"',
]
RECIPES_OF_CODES = RECIPES[:-4]  # under which codes may stand in a weight's place


def state(draw):
    one = [T(0)]
    for _ in range(3):
        one += [T(1, fill=0), T(4, fill=0), T(1, dtype=torch.int64, fill=0)]
    return one


def scaled_linear(draw):
    none = [None] * 3
    held = draw.choice([[], [None, None, *none, T(5, 6)], [codes(5, 6), T(1, fill=1), *none, None]])
    return [
        T(3, 6, grad=True),
        T(5, 6, grad=True),
        draw.choice([None, T(5)]),
        state(draw),
        held,
        draw.choice(RECIPES_OF_CODES if held and held[0] is not None else RECIPES),
        None,
        draw.random() < 0.5,
    ]


def norm_linear(draw):
    return [
        T(3, 6, grad=True),
        draw.choice([None, T(3, 6)]),
        T(6),
        T(6),
        T(5, 6, grad=True),
        T(5),
        state(draw),
        [],
        draw.choice(RECIPES),
        "layernorm",
        False,
        1e-5,
    ]


def norm_mlp(draw):
    activation = draw.choice(["gelu", "relu", "swiglu"])
    inner = 8 if activation == "swiglu" else 4
    return [
        T(3, 6, grad=True),
        draw.choice([None, T(3, 6)]),
        T(6),
        T(6),
        T(inner, 6, grad=True),
        T(inner),
        T(6, 4),
        T(6),
        activation,
        state(draw) + state(draw),
        [],
        draw.choice(RECIPES),
        "layernorm",
        False,
        1e-5,
    ]


def layer_pass(draw):
    return [
        [T(3, 6), None, None, None, T(5, 6), T(5), None, None],
        state(draw),
        draw.choice(RECIPES),
        None,
        "layernorm",
        False,
        1e-5,
        "gelu",
        [],
        0b110001,
        True,
        [],
        [],
    ]


def ticket():
    layer: Any = te.Linear(6, 5)
    inputs = [torch.randn(3, 6), None, None, None, layer.weight.detach(), layer.bias.detach(), None, None]
    rest: tuple[Any, ...] = (None, "layernorm", False, 1e-5, "gelu", [], 0b110001, True, [], [])
    return function_of("layer_pass")(inputs, layer._state(), '"fp8"', *rest)[3]


def layer_pass_backward(draw):
    return [
        T(3, 5),
        None,
        Made(ticket),
        T(3, 6),
        None,
        [None, None, None, None, T(5, 6), T(5), None, None],
        FP32,
        FP32,
        0b110001,
        0b110001,
    ]


def cross_entropy(draw):
    return [
        T(2, 3, 40),
        whole_numbers(2, 3, below=40),
        draw.choice([None, T(40, fill=1)]),
        draw.choice(["mean", "sum", "none"]),
        -100,
        0.0,
    ]


def linear_cross_entropy(draw):
    return [T(2, 3, 8), T(40, 8), whole_numbers(2, 3, below=40), draw.choice(["mean", "sum"]), -100, 0.1]


def sharded_unit(draw):
    ranks = Made(lambda: classes.Ranks(GROUP))
    options = [draw.choice([None, BF16]), FP32, True, True, draw.random() < 0.5, True, None, 0, None]
    return [["weight", "bias"], [T(3, 4, grad=True), T(3, grad=True)], [[], []], ranks, ranks, *options]


CALLS = {
    "accelerate": lambda draw: [],
    "acceleration_report": lambda draw: [],
    "activation": lambda draw: [T(2, 3, 20), draw.choice(["gelu", "silu", "geglu"])],
    "activation_backward": lambda draw: [T(3, 20), T(3, 10), "swiglu"],
    "activation_parameters": lambda draw: ["clamped_swiglu", [1.0, 2.0, 3.0]],
    "activation_names": lambda draw: [True],
    "activation_forward": lambda draw: [T(3, 20), "swiglu"],
    "adamw_": lambda draw: [T(7, 9), T(7, 9), T(7, 9), T(7, 9, fill=1), 3, 1e-3, 0.9, 0.999, 1e-8, 0.01],
    "adamw_codes_of_moment": lambda draw: [T(7, 9, fill=1), draw.random() < 0.5],
    "adamw_correction_of": lambda draw: [T(7, 9)],
    "adamw_join_weight": lambda draw: [T(7, 9, dtype=BF16), T(7, 9, dtype=torch.int8, fill=5)],
    "adamw_wide_moment": lambda draw: [T(7, 9, dtype=torch.int8, fill=5), T(2, dtype=torch.float16, fill=1)],
    "amax": lambda draw: [T(3, 70)],
    "attention": attention,
    "attention_backward": attention_backward,
    "attention_codes_forward": over_codes,
    "attention_forward": attention_forward,
    "attention_over_codes": over_codes,
    "attention_packed": packed_forward,
    "attention_packed_backward": packed_backward,
    "automatic_recipe": lambda draw: [draw.choice(["auto:mxfp8>fp16", '{"name": "auto", "every": 3}'])],
    "autoscale_as_scaled": lambda draw: [T(3, 4), Made(session)],
    "autoscale_as_scaled_with": lambda draw: [T(3, 4), T(fill=2), Made(session)],
    "autoscale_data": lambda draw: [scaled(3, 4)],
    "autoscale_kept_remainder": lambda draw: [scaled(3, 4)],
    "autoscale_mark_parameter": lambda draw: [scaled(3, 4)],
    "autoscale_rebalance": lambda draw: [scaled(3, 4), T(fill=2)],
    "autoscale_remainder": lambda draw: [scaled(3, 4)],
    "autoscale_result": lambda draw: [T(3, 4), T(fill=2), Made(session)],
    "autoscale_rules": lambda draw: [],
    "autoscale_scale": lambda draw: [scaled(3, 4)],
    "autoscale_scaled_array": lambda draw: [T(3, 4, dtype=torch.float16), T(3, 1, fill=2), Made(session)],
    "autoscale_session": lambda draw: [
        torch.float16,
        "remainder",
        "autoscale",
        0,
        *draw.choice([(None, None), ("e4m3", "e5m2"), ("nvfp4", "nvfp4"), ("mxfp4", "mxfp8")]),
        False,
    ],
    "autoscale_session_id": lambda draw: [scaled(3, 4)],
    "autoscale_session_of": lambda draw: [scaled(3, 4)],
    "autoscale_set_kept_remainder": lambda draw: [scaled(3, 4), T(3, 4, dtype=torch.float16)],
    "autoscale_set_scale": lambda draw: [scaled(3, 4), T(fill=2)],
    "autoscale_value": lambda draw: [scaled(3, 4)],
    "autoscale_with_dtype": lambda draw: [scaled(3, 4), BF16],
    "averaging": lambda draw: [4],
    "checkpoint_saver": lambda draw: ["saved", Made(lambda: classes.Ranks("")), 2, False],
    "clear_autocast_cache": lambda draw: [],
    "clip_factor": lambda draw: [1.0, 2.0],
    "column_sum": lambda draw: [T(3, 70)],
    "cross_entropy": cross_entropy,
    "cross_entropy_backward": lambda draw: [T(fill=1), *cross_entropy(draw)[:3], "mean", -100, 0.0],
    "cross_entropy_forward": lambda draw: [*cross_entropy(draw), True],
    "dequantize": dequantize,
    "dequantize_weight": lambda draw: [codes(5, 70), T(1, fill=1), '"fp8-current"', FP32],
    "embedding": lambda draw: [*embedding(draw), dict(dtype=BF16)],
    "embedding_backward": lambda draw: [T(2, 5, 8), whole_numbers(2, 5, below=11), 11, 9, 2, FP32],
    "embedding_forward": lambda draw: [*embedding(draw), BF16],
    "enter_autocast": lambda draw: [OWNER, "cpu", BF16, True, True],
    "enter_fp8_scope": lambda draw: [OWNER, draw.choice([[], ['"fp8"'], ['"fp8"'] * 3])],
    "enter_module": lambda draw: ["layers.0", dict(is_layer=True)],
    "enter_precision_table": lambda draw: [OWNER, draw.random() < 0.5],
    "finish_left_scope": lambda draw: [],
    "gemm": gemm,
    "gradient_reducer": lambda draw: [Made(lambda: classes.Ranks(GROUP)), 64, FP32, "bf16"],
    "innermost_fp8_scope": lambda draw: [],
    "is_accelerated": lambda draw: [],
    "layer_pass": layer_pass,
    "layer_pass_backward": layer_pass_backward,
    "leave_module": lambda draw: ["layers.0"],
    "linear": lambda draw: [T(2, 3, 6, grad=True), T(5, 6), T(5), dict(dtype=draw.choice([None, FP32, BF16]))],
    "linear_cross_entropy": linear_cross_entropy,
    "linear_cross_entropy_forward": lambda draw: [*linear_cross_entropy(draw), FP32, [True, True]],
    "mapped_zeros": lambda draw: [[3, 4], FP32, str(folder())],
    "name_product": lambda draw: [T(0), "layer"],
    "next_loss_scale": lambda draw: [
        1024.0,
        3,
        False,
        dict(
            overflows=1,
            growth_interval=4,
            hysteresis=2,
            min_scale=0.0,
            max_scale=2.0**20,
            histogram=T(256, dtype=torch.int64, fill=1),
            grad_norm=1.0,
        ),
    ],
    "norm": lambda draw: [T(2, 3, 20), T(20), T(20), "layernorm", False, 1e-5],
    "norm_backward": norm_backward,
    "norm_forward": lambda draw: [T(3, 20), draw.choice([None, T(3, 20)]), T(20), T(20), "layernorm", False, 1e-5, BF16],
    "norm_linear": norm_linear,
    "norm_mlp": norm_mlp,
    "norm_residual": lambda draw: [T(3, 20), T(3, 20), T(20), T(20), "layernorm", False, 1e-5],
    "open_checkpoint": lambda draw: [str(saved_checkpoint())],
    "open_latest_checkpoint": lambda draw: [str(saved_checkpoint().parent), Made(lambda: classes.Ranks(""))],
    "precision_controller": lambda draw: [draw.choice(["auto", "auto:mxfp8>fp16"])],
    "precision_table": lambda draw: [],
    "quantize": lambda draw: [T(3, 70), T(1, fill=1), "e4m3"],
    "quantize_weight": lambda draw: [T(5, 70), draw.choice(['"fp8"', '"mxfp8"', '"fp8-row"']), draw.choice([None, T(1, fill=1)])],
    "quantize_blocks": lambda draw: [T(5, 70), "e5m2", draw.choice(BLOCKS), draw.choice(["fp32", "e8m0"]), False, "up"],
    "release_pages": lambda draw: [Made(lambda: ops.mapped_zeros([2000], FP32, str(folder())))],
    "reset_acceleration_report": lambda draw: [],
    "rotary": lambda draw: [T(5, 2, 3, 8), T(6, 4), 0, False],
    "rotary_turn": lambda draw: [T(2, 5, 3, 8), T(6, 4), T(6, 4), 1, True, False],
    "scaled_gemm": scaled_gemm,
    "scaled_linear": scaled_linear,
    "scopes_of_thread": lambda draw: [],
    "sharded_unit": sharded_unit,
    "share_findings": lambda draw: [Made(lambda: classes.Ranks("")), 1, 2, 0, 1.0, T(256, dtype=torch.int64, fill=1)],
    "softmax": lambda draw: [T(2, 3, 5, 33), 0.5, "causal", None],
    "softmax_backward": lambda draw: [T(2, 3, 5, 33), T(2, 3, 5, 33), 0.5],
    "softmax_forward": lambda draw: [T(2, 3, 5, 33), 0.5, "no_mask", T(2, 1, 5, 33, dtype=torch.bool, fill=(0, 2))],
    "set_acceleration_rules": lambda draw: [True],
    "stop_acceleration": lambda draw: [],
    "stop_at_incident": lambda draw: [],
    "transpose": lambda draw: [T(17, 33)],
    "unscale_gradients_": lambda draw: [[T(3, 4), T(70, dtype=BF16)], 0.5, 1.0, False],
    "cuda_sources": lambda draw: [],
    "cuda_verified_on": lambda draw: [],
    "cuda_can_launch": lambda draw: [],
    "use_caching_allocator": lambda draw: [],
    "audit_session": lambda draw: [],
    "watch_session": lambda draw: [draw.choice(["guard", "count", "shadow"]), 2.0, False],
    **hostile_decoder.CALLS,
    **hostile_t5.CALLS,
}


WITHOUT_GRADIENTS = {"layer_pass_backward"}  # is what a backward pass calls


def registered():
    """The names of all operators of ours that calls are listed of."""
    names = (name.removeprefix("plimsoll::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("plimsoll::"))
    return {name for name in names if name not in IN_PYTHON}


@cache
def all_calls():
    known = registered()
    return {name: call for name, call in {**CALLS, **method_calls()}.items() if "." in name or name in known}


def by_schema(op):
    """The operator with all arguments in the order of its schema, those that it takes by name included."""
    arguments = op.default._schema.arguments
    first = sum(not each.kwarg_only for each in arguments)
    names = [each.name for each in arguments[first:]]
    return lambda *given, **more: op(*given[:first], **dict(zip(names, given[first:], strict=False)), **more)


def function_of(name):
    """Function for a name in CALLS or method_calls()."""
    if "." not in name:
        return by_schema(getattr(ops, name))
    owner, method = name.split(".")
    if method == "__init__":
        return getattr(classes, owner)
    return lambda *arguments: getattr(new(owner), method)(*arguments)
