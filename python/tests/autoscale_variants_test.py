"""Variants of operators with a rule that write in place (`add_`) or into tensors of the caller's (`out=`): every overload that
torch has, found by schemas here, apart from how plimsoll/autoscale/variants.cpp pairs them."""

from typing import Any

import plimsoll.autoscale as autoscale
import pytest
import torch
from rounding import gamma, within
from torch import nn

SHAPE = (4, 6)
# Eight roundings of FP16, of a result and of the terms near 1 that it is a sum of.
CLOSE: Any = {"rtol": gamma(8, torch.float16), "atol": gamma(8, torch.float16)}


def floats(*shape, seed=0):
    """Between 1/2 and 2, held by FP16."""
    generator = torch.Generator().manual_seed(seed)
    return (0.5 + 1.5 * torch.rand(shape or SHAPE, generator=generator)).half().float()


def integers(*shape, below=4):
    return torch.arange(torch.Size(shape).numel()).reshape(shape) % below


# Arguments that a schema does not tell, by the operator's name and the argument's.
SAMPLES = {
    "index.Tensor": {"indices": [integers(3)]},
    "index_put": {"indices": [integers(3)], "values": floats(3, 6)},
    "_index_put_impl": {"indices": [integers(3)], "values": floats(3, 6)},
    "index_select": {"index": integers(3)},
    "index_add": {"dim": 0, "index": integers(4), "source": floats(seed=2)},
    "index_copy": {"dim": 0, "index": integers(4), "source": floats(seed=2)},
    "index_fill.int_Scalar": {"index": integers(3)},
    "index_fill.int_Tensor": {"index": integers(3), "value": torch.tensor(1.25)},
    "gather": {"index": integers(2, 6)},
    "scatter.reduce": {"reduce": "multiply"},
    "scatter.value_reduce": {"reduce": "add"},
    "scatter_reduce.two": {"reduce": "amax"},
    "masked_fill.Tensor": {"value": torch.tensor(1.25)},
    "embedding": {"indices": integers(3)},
    "embedding_dense_backward": {"indices": integers(4), "num_weights": 5, "padding_idx": -1},
    "cat": {"tensors": [floats(), floats(2, 6)]},
    "stack": {"tensors": [floats(), floats(seed=1)]},
    "native_dropout": {"p": 0.0, "train": True},
    "native_dropout_backward": {"mask": integers(*SHAPE, below=2).bool()},
    "flip": {"dims": [0, 1]},
    "roll": {"shifts": [1], "dims": [0]},
    "repeat": {"repeats": [2, 3]},
    "_unsafe_view": {"size": [6, 4]},
    "topk": {"k": 2},
    "slice_backward": {"input_sizes": [9, 6], "dim": 0, "start": 0, "end": 4, "step": 1},
    "select_backward": {"input_sizes": [3, 4, 6], "dim": 0, "index": 1},
    "unfold_backward": {"grad_in": floats(3, 6, 2), "input_sizes": [4, 6], "dim": 0, "size": 2, "step": 1},
    "im2col": {"self": floats(1, 2, 4, 4), "kernel_size": [2, 2], "dilation": [1, 1], "padding": [0, 0], "stride": [2, 2]},
    "col2im": {
        "self": floats(1, 8, 4),
        "output_size": [4, 4],
        "kernel_size": [2, 2],
        "dilation": [1, 1],
        "padding": [0, 0],
        "stride": [2, 2],
    },
    "max_pool2d_with_indices": {"self": floats(1, 2, 4, 4), "kernel_size": [2, 2]},
    "max_pool2d_with_indices_backward": {
        "grad_output": floats(1, 2, 2, 2),
        "self": floats(1, 2, 4, 4),
        "kernel_size": [2, 2],
        "stride": [2, 2],
        "padding": [0, 0],
        "dilation": [1, 1],
        "ceil_mode": False,
        "indices": torch.tensor([0, 2, 8, 10]).expand(1, 2, 4).reshape(1, 2, 2, 2),
    },
    "_adaptive_avg_pool2d": {"self": floats(1, 2, 4, 4), "output_size": [2, 2]},
    "_adaptive_avg_pool2d_backward": {"grad_output": floats(1, 2, 2, 2), "self": floats(1, 2, 4, 4)},
    "avg_pool2d": {"self": floats(1, 2, 4, 4), "kernel_size": [2, 2]},
    "avg_pool2d_backward": {
        "grad_output": floats(1, 2, 2, 2),
        "self": floats(1, 2, 4, 4),
        "kernel_size": [2, 2],
        "stride": [2, 2],
        "padding": [0, 0],
        "ceil_mode": False,
        "count_include_pad": True,
        "divisor_override": None,
    },
    "std.correction": {"dim": [1]},
    "var.correction": {"dim": [1]},
    "logsumexp": {"dim": [1]},
    "sum.dim_IntList": {"dim": [1]},
    "mean.dim": {"dim": [1]},
    "dot": {"self": floats(6), "tensor": floats(6, seed=1)},
    "mv": {"vec": floats(6)},
    "mm": {"mat2": floats(6, 5)},
    "bmm": {"self": floats(2, 4, 6), "mat2": floats(2, 6, 5)},
    "addmm": {"self": floats(4, 5), "mat1": floats(), "mat2": floats(6, 5)},
    "baddbmm": {"self": floats(2, 4, 5), "batch1": floats(2, 4, 6), "batch2": floats(2, 6, 5)},
    "constant_pad_nd": {"pad": [1, 2]},
    "clamp": {"min": 0.75, "max": 1.25},
    "mse_loss_backward": {"reduction": 2},
    "smooth_l1_loss_backward": {"reduction": 2, "beta": 1.0},
    "pow.Scalar": {"self": 1.5},
    "value_selecting_reduction_backward": {"dim": 1, "indices": integers(4), "sizes": [4, 6], "keepdim": False},
    "_softmax": {"dim": 1, "half_to_float": False},
    "_log_softmax": {"dim": 1, "half_to_float": False},
    "_softmax_backward_data": {"dim": 1, "input_dtype": torch.float32},
    "_log_softmax_backward_data": {"dim": 1, "input_dtype": torch.float32, "output": -floats(seed=1)},
    "elu_backward": {"alpha": 1, "scale": 1, "input_scale": 1, "is_result": False},
    "leaky_relu_backward": {"negative_slope": 0.5, "self_is_result": False},
    "binary_cross_entropy_with_logits": {"weight": floats(seed=3), "pos_weight": floats(6, seed=4), "reduction": 1},
    "nll_loss_forward": {"target": integers(4), "weight": floats(6, seed=3), "reduction": 1, "ignore_index": -100},
    "nll_loss_backward": {
        "grad_output": torch.tensor(1.5),
        "target": integers(4),
        "weight": floats(6, seed=3),
        "reduction": 1,
        "ignore_index": -100,
        "total_weight": torch.tensor(4.0),
    },
    "native_layer_norm": {"normalized_shape": [6], "weight": floats(6, seed=3), "bias": floats(6, seed=4), "eps": 1e-5},
    "native_layer_norm_backward": {
        "normalized_shape": [6],
        "mean": floats(4, 1, seed=1),
        "rstd": floats(4, 1, seed=2),
        "weight": floats(6, seed=3),
        "bias": floats(6, seed=4),
        "output_mask": [True] * 3,
    },
    "native_batch_norm": {
        "weight": floats(6, seed=1),
        "bias": floats(6, seed=2),
        "running_mean": None,
        "running_var": None,
        "training": True,
        "momentum": 0.1,
        "eps": 1e-5,
    },
    "native_batch_norm_backward": {
        "weight": floats(6, seed=1),
        "running_mean": None,
        "running_var": None,
        "save_mean": floats(6, seed=2),
        "save_invstd": floats(6, seed=3),
        "train": True,
        "eps": 1e-5,
        "output_mask": [True] * 3,
    },
    "native_group_norm": {
        "input": floats(2, 4, 3),
        "weight": floats(4, seed=1),
        "bias": floats(4, seed=2),
        "N": 2,
        "C": 4,
        "HxW": 3,
        "group": 2,
        "eps": 1e-5,
    },
    "native_group_norm_backward": {
        "grad_out": floats(2, 4, 3),
        "input": floats(2, 4, 3, seed=5),
        "mean": floats(2, 2, seed=1),
        "rstd": floats(2, 2, seed=2),
        "weight": floats(4, seed=3),
        "N": 2,
        "C": 4,
        "HxW": 3,
        "group": 2,
        "output_mask": [True] * 3,
    },
    "convolution": {
        "input": floats(1, 2, 5, 5),
        "weight": floats(3, 2, 2, 2, seed=1),
        "bias": floats(3, seed=2),
        "stride": [1, 1],
        "padding": [0, 0],
        "dilation": [1, 1],
        "transposed": False,
        "output_padding": [0, 0],
        "groups": 1,
    },
    "convolution_backward": {
        "grad_output": floats(1, 3, 4, 4),
        "input": floats(1, 2, 5, 5, seed=1),
        "weight": floats(3, 2, 2, 2, seed=2),
        "bias_sizes": [3],
        "stride": [1, 1],
        "padding": [0, 0],
        "dilation": [1, 1],
        "transposed": False,
        "output_padding": [0, 0],
        "groups": 1,
        "output_mask": [True] * 3,
    },
}
for dims, modes in {
    1: ("upsample_nearest", "_upsample_nearest_exact", "upsample_linear"),
    2: ("upsample_nearest", "_upsample_nearest_exact", "upsample_bilinear", "upsample_bicubic"),
    3: ("upsample_nearest", "_upsample_nearest_exact", "upsample_trilinear"),
}.items():
    small, large = [2, 3] + [3] * dims, [2, 3] + [6] * dims
    for mode in modes:
        for op in (f"{mode}{dims}d", f"_{mode}{dims}d_aa"):
            SAMPLES[op] = {"self": floats(*small), "output_size": large[2:]}
            SAMPLES[op + "_backward"] = {"grad_output": floats(*large), "output_size": large[2:], "input_size": small}


def recurrent_samples() -> dict[str, dict[str, Any]]:
    """Samples of 8 cells, whose gates are 4, over 5 steps of 3 sequences; the gradient reads what a forward pass has written."""
    weights = [floats(32, 6, seed=1) - 1, floats(32, 8, seed=2) - 1, floats(32, seed=3), floats(32, seed=4)]
    sizes = {"mode": 2, "hidden_size": 8, "num_layers": 1, "has_biases": True, "bidirectional": False, "train": True}
    common = {"reverse": False, "batch_sizes": [], "batch_first": False, **sizes, "input": floats(5, 3, 6)}
    state = {"hx_": floats(1, 3, 8), "cx_": floats(1, 3, 8, seed=5)}
    forward = {**common, **state, **{f"weight{i}": weight for i, weight in enumerate(weights)}}
    schema = torch.ops.aten.mkldnn_rnn_layer.default._schema
    output, hidden, cells, workspace = torch.ops.aten.mkldnn_rnn_layer(*[forward[a.name] for a in schema.arguments])
    written = {"output": output, "hy_": hidden, "cy_": cells, "workspace": workspace, "cx_tmp": state["cx_"]}
    gradients = {"grad_output": floats(5, 3, 8, seed=6), "grad_hy": floats(1, 3, 8, seed=7), "grad_cy": floats(1, 3, 8, seed=8)}
    named = {f"weight{i + 1}": weight for i, weight in enumerate(weights)}
    return {
        "mkldnn_rnn_layer": forward,
        "mkldnn_rnn_layer_backward": {**common, "hx_": state["hx_"], **named, **written, **gradients},
    }


SAMPLES.update(recurrent_samples())


def sample(op: str, argument: torch.Argument, position: int):
    """Sample for an argument, the first that there is: of SAMPLES, the schema's default, one for its name and type."""
    own = SAMPLES.get(op, {})
    if argument.name in own:
        return own[argument.name]
    kind = str(argument.type)
    if kind == "Tensor" and argument.name in ("mask", "condition"):
        return integers(*SHAPE, below=2).bool()
    if kind == "Tensor" and argument.name == "index":
        return integers(*SHAPE)
    if argument.has_default_value() and "Tensor" not in kind:
        return argument.default_value
    if "Tensor" in kind:
        return floats(seed=position)
    return {"int": 1, "float": 0.5, "number": 1.5, "bool": False, "str": "none"}.get(kind, 1.5 if "number" in kind else None)


def is_written(argument: torch.Argument) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def signature(schema: torch.FunctionSchema) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in schema.arguments]


def find_variants():
    """(functional schema, schema of a variant) of every rule: in place, and out=."""
    schemas: dict[str, list[torch.FunctionSchema]] = {}
    for schema in torch._C._jit_get_all_schemas():
        schemas.setdefault(schema.name, []).append(schema)
    in_place, out = [], []
    for op in torch.ops.plimsoll.autoscale_rules()[0]:
        name, _, overload = op.partition(".")
        functional = next((s for s in schemas.get("aten::" + name, []) if s.overload_name == overload), None)
        if functional is None or any(is_written(argument) for argument in functional.arguments):
            continue
        for schema in schemas.get(f"aten::{name}_", []):
            if signature(schema) == signature(functional) and is_written(schema.arguments[0]):
                in_place.append((op, functional, schema))
        for schema in schemas["aten::" + name]:
            outs = schema.arguments[len(functional.arguments) :]
            if outs and signature(schema)[: len(functional.arguments)] == signature(functional) and all(map(is_written, outs)):
                out.append((op, functional, schema))
    return in_place, out


IN_PLACE, OUT = find_variants()


def overload(schema: torch.FunctionSchema):
    return getattr(getattr(torch.ops.aten, schema.name.removeprefix("aten::")), schema.overload_name or "default")


def name_of(case) -> str:
    schema = case[2]
    return schema.name.removeprefix("aten::") + ("." + schema.overload_name if schema.overload_name else "")


def scaled(x):
    """The same value, with data and a scale that are neither."""
    if isinstance(x, list):
        return [scaled(each) for each in x]
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        return x
    return autoscale.scaled_array((x * 2.0**-3).half(), 2.0**3)


def call(schema: torch.FunctionSchema, arguments: list[Any], **outs):
    """Positional arguments, and those that a schema has by name alone."""
    named = {a.name: value for a, value in zip(schema.arguments, arguments, strict=False) if a.kwarg_only}
    positional = [value for a, value in zip(schema.arguments, arguments, strict=False) if not a.kwarg_only]
    return overload(schema)(*positional, **named, **outs)


def copied(x):
    return x.clone() if isinstance(x, torch.Tensor) else x


def arguments_of(op: str, functional: torch.FunctionSchema):
    plain = [sample(op, argument, i) for i, argument in enumerate(functional.arguments)]
    return [copied(x) for x in plain], [copied(scaled(x)) for x in plain]


def fallbacks(*tensors) -> list[str]:
    scaled_ones = [x for x in tensors if autoscale.is_scaled(x)]
    return [op for x in scaled_ones for op in autoscale.report(x).without_rule]


def test_variants_of_every_kind_are_found():
    names = {name_of(case) for case in IN_PLACE}
    assert {"pow_.Scalar", "pow_.Tensor", "eq_.Tensor", "scatter_.value", "index_put_", "_index_put_impl_"} <= names
    assert {"mm.out", "add.out", "max.dim_max", "native_layer_norm.out"} <= {name_of(case) for case in OUT}
    assert [schema for op, _, schema in IN_PLACE if op == "pow.Scalar"] == []  # whose base is a number
    assert len(IN_PLACE) > 70 and len(OUT) > 130


@pytest.mark.parametrize("case", IN_PLACE, ids=name_of)
def test_a_variant_in_place_does_what_torch_does(case):
    op, functional, schema = case
    plain, ours = arguments_of(op, functional)
    expected = call(schema, plain)
    result = call(schema, ours)
    assert result is ours[0] and fallbacks(*ours) == []
    assert torch.allclose(autoscale.value(result), expected.float(), **CLOSE)
    # A plain tensor is written into by scaled ones, where there are any.
    target = copied(sample(op, functional.arguments[0], 0))
    others = [copied(scaled(sample(op, argument, i))) for i, argument in enumerate(functional.arguments)][1:]
    if any(autoscale.is_scaled(x) for x in others):
        call(schema, [target, *others])
        assert not autoscale.is_scaled(target) and torch.allclose(target, expected, **CLOSE) and fallbacks(*others) == []


def outputs(schema: torch.FunctionSchema, functional: torch.FunctionSchema, results, make):
    names = [argument.name for argument in schema.arguments[len(functional.arguments) :]]
    results = results if isinstance(results, tuple) else (results,)
    return results, {name: make(result) for name, result in zip(names, results, strict=True)}


def scaled_like(result: torch.Tensor) -> torch.Tensor:
    other = torch.full_like(result, 7)
    return autoscale.as_scaled(other) if result.is_floating_point() else other


@pytest.mark.parametrize("kind", ["scaled", "scaled and empty", "plain"])
@pytest.mark.parametrize("case", OUT, ids=name_of)
def test_a_variant_with_out_does_what_torch_does(case, kind):
    op, functional, schema = case
    make = {"scaled": scaled_like, "plain": torch.empty_like, "scaled and empty": lambda x: scaled_like(x.new_empty(0))}[kind]
    plain, ours = arguments_of(op, functional)
    expected, outs = outputs(schema, functional, call(functional, plain), make)
    given = list(outs.values())
    results = call(schema, ours, **outs)
    for result, out, one in zip(results if isinstance(results, tuple) else (results,), given, expected, strict=True):
        assert result is out and autoscale.is_scaled(out) == (kind != "plain" and one.is_floating_point())
        assert out.shape == one.shape
        if out.dtype != torch.uint8:  # as a recurrent layer's working memory, parts of which nobody writes
            assert torch.allclose(autoscale.value(out).float(), one.float(), **CLOSE)
    assert fallbacks(*ours, *given) == []


def test_a_step_written_by_out_into_its_operand_is_not_lost_to_rounding():
    weight: Any = autoscale.autoscale(nn.Linear(4, 3, bias=False)).weight
    start, step = autoscale.value(weight.detach()).clone(), torch.full((3, 4), 2.0**-16)
    with torch.no_grad():
        for _ in range(256):
            torch.add(weight, step, out=weight)
    # Data are rounded once before and once after; data and remainder, whose 22 bits all steps are added to, at each step.
    bound = (gamma(2, torch.float16) + 256 * 2.0**-22) * autoscale.value(weight.detach()).abs().max()
    assert within(autoscale.value(weight.detach()) - start, torch.full((3, 4), 2.0**-8), bound)


def test_out_of_a_dtype_that_results_cannot_be_cast_to_is_refused():
    x = autoscale.as_scaled(floats())
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type Long"):
        torch.add(x, x, out=torch.zeros(SHAPE, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="expected out of a dtype that Long can be cast to, got Bool|can't be cast"):
        torch.max(x, 1, out=(autoscale.as_scaled(floats(4)), torch.zeros(4, dtype=torch.bool)))
