"""Mistakes end in one exception that names the argument, what was expected and what came; never in an abort."""

import math
from typing import Any, cast

import plimsoll
import plimsoll.pytorch as te
import pytest
import torch

NAN = math.nan

MODULES = {
    "Linear": lambda **keywords: te.Linear(4, 4, **keywords),
    "LayerNormLinear": lambda **keywords: te.LayerNormLinear(4, 4, **keywords),
    "LayerNormMLP": lambda **keywords: te.LayerNormMLP(4, 4, **keywords),
    "LayerNorm": lambda **keywords: te.LayerNorm(4, **keywords),
    "MultiheadAttention": lambda **keywords: te.MultiheadAttention(4, 2, **keywords),
    "TransformerLayer": lambda **keywords: te.TransformerLayer(4, 4, 2, **keywords),
    "DotProductAttention": lambda **keywords: te.DotProductAttention(2, 4, **keywords),
}


@pytest.mark.parametrize("name", MODULES)
def test_unknown_arguments_are_type_errors(name):
    with pytest.raises(TypeError, match=f"{name}.*'biass'"):
        MODULES[name](biass=True)


@pytest.mark.parametrize(
    "name,argument,default,other",
    [
        ("Linear", "delay_wgrad_compute", False, True),
        ("Linear", "ub_overlap_ag", False, True),
        ("LayerNormLinear", "return_layernorm_output_gathered", False, True),
        ("MultiheadAttention", "symmetric_ar_type", None, "multimem_all_reduce"),
        ("TransformerLayer", "ub_bulk_dgrad", True, False),
        ("TransformerLayer", "ub_tp_comm_overlap", False, True),
        ("TransformerLayer", "window_size", (128, 0), (128, 128)),
        ("DotProductAttention", "cp_group", None, "group"),
    ],
)
def test_arguments_without_meaning_here_are_accepted_at_their_default_alone(name, argument, default, other):
    MODULES[name](**{argument: default})
    with pytest.raises(NotImplementedError, match=argument):
        MODULES[name](**{argument: other})


@pytest.mark.parametrize(
    "call,error,message",
    [
        (lambda: te.Linear(4, 4, device="mps"), NotImplementedError, "device"),
        (lambda: te.Linear(4, 4, params_dtype=torch.float64), TypeError, "float64"),
        (lambda: te.Linear(4, -1), ValueError, "out_features >= 0, got -1"),
        (lambda: te.Linear(4, cast(Any, 2.5)), TypeError, "out_features an integer, got 2.5"),
        (lambda: te.Linear(4, 4, parameters_split={"a": 3}), ValueError, "parameters_split of 4 rows"),
        (lambda: te.Linear(4, 4, parallel_mode="both"), ValueError, "parallel_mode"),
        (lambda: te.LayerNormMLP(4, 4, activation="tanh"), ValueError, "activation one of .*got 'tanh'"),
        (lambda: te.LayerNormLinear(4, 4, normalization="BatchNorm"), ValueError, "normalization"),
        (lambda: te.MultiheadAttention(10, 3), ValueError, "divides 10"),
        (lambda: te.DotProductAttention(4, 8, 3), ValueError, "num_gqa_groups that divides 4"),
        (lambda: te.LayerNorm(0), ValueError, "normalized_shape >= 1, got 0"),
        (lambda: te.LayerNorm(()), ValueError, "normalized_shape of one dimension, got .."),
        (lambda: te.RMSNorm(None), TypeError, "normalized_shape an integer, got None"),
        (lambda: te.LayerNorm(4, eps=-1), ValueError, "eps that is finite and >= 0, got -1"),
        (lambda: te.RMSNorm(4, eps=NAN), ValueError, "eps that is finite and >= 0, got nan"),
        (lambda: te.LayerNorm(4, eps=cast(Any, "small")), TypeError, "eps a number, got 'small'"),
        (lambda: te.LayerNormLinear(0, 4), ValueError, "size >= 1, got 0"),
        (lambda: te.LayerNormLinear(4, 4, eps=math.inf), ValueError, "eps that is finite and >= 0, got inf"),
        (lambda: te.LayerNormMLP(0, 4), ValueError, "size >= 1, got 0"),
        (lambda: te.LayerNormMLP(4, 4, eps=-1e-5), ValueError, "eps that is finite and >= 0"),
        (lambda: te.Linear(4, 4, parameters_split=[]), ValueError, "one part or more, got .."),
        (lambda: te.Linear(4, 4, parameters_split={"a": -1, "b": 5}), ValueError, "rows of 'a_' >= 0, got -1"),
        (lambda: te.DotProductAttention(2, 4, attention_dropout=2), ValueError, r"attention_dropout in \[0, 1\), got 2"),
        (lambda: te.DotProductAttention(2, 4, attention_dropout=NAN), ValueError, r"attention_dropout in \[0, 1\), got nan"),
        (lambda: te.DotProductAttention(2, 4, num_gqa_groups=0), ValueError, "num_gqa_groups >= 1, got 0"),
        (lambda: te.DotProductAttention(2, 4, softmax_scale=0.0), ValueError, "softmax_scale that is finite and > 0, got 0.0"),
        (lambda: te.DotProductAttention(2, 4, softmax_scale=NAN), ValueError, "softmax_scale that is finite and > 0, got nan"),
        (lambda: te.MultiheadAttention(4, 2, num_gqa_groups=0), ValueError, "num_gqa_groups >= 1, got 0"),
        (lambda: te.MultiheadAttention(8, 4, num_gqa_groups=3), ValueError, "num_gqa_groups that divides 4 heads, got 3"),
        (lambda: te.MultiheadAttention(4, 2, kv_channels=0), ValueError, "kv_channels >= 1, got 0"),
        (lambda: te.MultiheadAttention(4, 2, attention_dropout=-0.5), ValueError, "attention_dropout in"),
        (lambda: te.MultiheadAttention(4, 2, layernorm_epsilon=-1, input_layernorm=True), ValueError, "eps that is finite"),
        (lambda: te.TransformerLayer(4, 4, 2, layernorm_epsilon=-1), ValueError, "eps that is finite and >= 0, got -1"),
        (lambda: te.TransformerLayer(4, 4, 2, hidden_dropout=2), ValueError, r"hidden_dropout in \[0, 1\], got 2"),
        (lambda: te.TransformerLayer(4, 4, 2, attention_dropout=NAN), ValueError, "attention_dropout in"),
        (lambda: te.TransformerLayer(4, 4, 2, num_gqa_groups=0), ValueError, "num_gqa_groups >= 1, got 0"),
        (lambda: te.RotaryPositionEmbedding(8, rotary_percent=0.1), ValueError, "even number of channels to turn, got 0 of 8"),
        (lambda: te.RotaryPositionEmbedding(8, rotary_base=0), ValueError, "rotary_base that is finite and > 0, got 0"),
        (lambda: te.RotaryPositionEmbedding(8, seq_len_interpolation_factor=NAN), ValueError, "seq_len_interpolation_factor"),
        (lambda: te.fp8_autocast(fp8_recipe=cast(Any, "fp8")), TypeError, "recipe"),
        (lambda: te.fp8_autocast(calibrating=True), NotImplementedError, "calibrating"),
        (lambda: te.fp8_autocast(fp8_group="group"), ValueError, "group of an initialised"),
        (lambda: te.make_graphed_callables(None), NotImplementedError, "make_graphed_callables"),
        (lambda: te.onnx_export(), NotImplementedError, "onnx_export"),
        *(
            (lambda window=window: te.DotProductAttention(2, 4, window_size=window), error, message)
            for window, error, message in (
                ((2,), ValueError, r"window_size None or \(left, right\), got \(2,\)"),
                (2, TypeError, "window_size a list of integers, got 2"),
                ((2.5, 0), TypeError, r"window_size\[0\] an integer, got 2.5"),
                ((None, 0), TypeError, r"window_size\[0\] an integer, got None"),
                ("20", TypeError, "window_size a list of integers, got '20'"),
            )
        ),
        *(
            (
                lambda params=params: te.TransformerLayer(4, 4, 2, activation="clamped_swiglu", activation_params=params),
                error,
                message,
            )
            for params, error, message in (
                (7.0, TypeError, "activation_params a dictionary or None, got 7.0"),
                ({"limit": None}, TypeError, r"activation_params\['limit'\] a number, got None"),
                ({"limit": "7"}, TypeError, r"activation_params\['limit'\] a number, got '7'"),
                ({"limit": 10**400}, ValueError, r"activation_params\['limit'\] that a float holds, got 1000"),
                ({"alpha": 1e39}, ValueError, "alpha of clamped_swiglu that is finite, got 1e\\+39"),
                ({3: 1.0}, ValueError, "one of limit, alpha, glu_linear_offset, got 3"),
            )
        ),
        (lambda: te.LayerNormMLP(4, 4)(cast(Any, [1.0])), TypeError, r"LayerNormMLP: expected inp a tensor, got \[1.0\]"),
        (
            lambda: te.LayerNormMLP(4, 4)(torch.ones(1, 4), cast(Any, "yes")),
            TypeError,
            "is_first_microbatch True or False, got 'yes'",
        ),
        (lambda: te.apply_rotary_pos_emb(torch.ones(2, 1, 1, 4), cast(Any, [1])), TypeError, "freqs a tensor"),
        (lambda: plimsoll.accelerate(cast(Any, 1)), TypeError, "expected on True or False, got 1"),
        (lambda: plimsoll.accelerate(report=cast(Any, "yes")), TypeError, "expected report True or False, got 'yes'"),
        (lambda: plimsoll.enable_floating_point_exceptions(cast(Any, "no")), TypeError, "enabled True or False, got 'no'"),
        (lambda: te.Linear(4, 4)(cast(Any, None)), TypeError, "Linear: expected inp a tensor, got None"),
        (lambda: te.LayerNormLinear(4, 4)(cast(Any, 1)), TypeError, "LayerNormLinear: expected inp a tensor, got 1"),
        (lambda: te.RMSNorm(4)(cast(Any, [1.0])), TypeError, "expected input a tensor"),
        (lambda: te.MultiheadAttention(8, 2)(cast(Any, "x")), TypeError, "hidden_states a tensor, got 'x'"),
        (lambda: te.TransformerLayer(8, 8, 2)(cast(Any, [[1]])), TypeError, "hidden_states a tensor"),
        (lambda: te.DotProductAttention(2, 4)(*3 * [cast(Any, [1])]), TypeError, "query_layer a tensor"),
        *(
            (lambda splits=splits: te.GroupedLinear(2, 4, 4)(torch.zeros(5, 4), splits), error, message)
            for splits, error, message in (
                (5, TypeError, "m_splits a list of integers, got 5"),
                (None, TypeError, "m_splits a list of integers, got None"),
                ([2.0, 3.0], TypeError, r"m_splits\[0\] an integer, got 2.0"),
                (torch.tensor([2.0, 3.0]), TypeError, r"m_splits\[0\] an integer, got 2.0"),
                (torch.tensor([[2, 3]]), TypeError, r"m_splits a list of integers, got a tensor \[1, 2\] of torch.int64"),
            )
        ),
        (lambda: te.GroupedLinear(1, 4, 4)(torch.tensor(1.0), [1]), ValueError, "GroupedLinear: expected inp"),
        (lambda: te.moe_permute(cast(Any, [1]), torch.ones(3, 5) > 0), TypeError, r"inp a tensor, got \[1\]"),
        (lambda: te.moe_permute(torch.ones(3, 5), cast(Any, None)), TypeError, "routing_map a tensor, got None"),
        (lambda: te.moe_permute(torch.ones(3, 5), torch.ones(3, 2)), TypeError, "routing_map of bool or integers .*float32"),
        (lambda: te.moe_permute(torch.ones(3, 5), torch.ones(3, 2), map_type="index"), TypeError, "of integers .*float32"),
        (lambda: te.moe_permute(torch.ones(3, 5), torch.ones(3, 2) > 0, cast(Any, 2.5)), TypeError, "num_out_tokens an integer"),
        (lambda: te.moe_permute(torch.ones(3, 5), torch.ones(3, 2) > 0, -2), ValueError, "num_out_tokens >= -1, got -2"),
        (lambda: te.moe_unpermute(torch.ones(3, 5), cast(Any, [0])), TypeError, "row_id_map a tensor"),
        (lambda: te.moe_unpermute(torch.ones(1, 5), torch.tensor([[0]]), cast(Any, 0.5)), TypeError, "merging_probs a tensor"),
        (lambda: te.moe_unpermute(torch.ones(1, 5), torch.tensor([[0]]), restore_shape=cast(Any, 5)), TypeError, "restore_shape"),
        (lambda: plimsoll.watch(cast(Any, None)), TypeError, "watch: expected mode a string, got None"),
        (lambda: plimsoll.watch("trap", stops=cast(Any, "yes")), TypeError, "stops True or False, got 'yes'"),
        (lambda: plimsoll.watch(warn_bits=cast(Any, "2")), TypeError, "warn_bits a number, got '2'"),
        (lambda: plimsoll.watch(warn_bits=NAN), ValueError, "warn_bits that is finite, got nan"),
    ],
)
def test_construction(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_a_card_that_is_not_there_is_named():
    with pytest.raises(RuntimeError, match="Linear: expected a card that torch sees for device 'cuda:1', found none"):
        te.Linear(4, 4, device="cuda:1")


@pytest.mark.parametrize(
    "x,message",
    [
        (torch.zeros(2, 5), r"linear: expected x \[..., 4\], got \[2, 5\]"),
        (torch.zeros(2, 4, dtype=torch.float64), "expected x of float32, bfloat16 or float16, got Double"),
        (torch.zeros(2, 4, dtype=torch.int64), "expected x of float32.*got Long"),
        (torch.zeros(2, 4, device="meta"), "expected x on the cpu.*got it on meta"),
        (torch.tensor(1.0), "one dimension or more"),
    ],
)
@pytest.mark.parametrize("enabled", [False, True])
def test_linear_inputs(x, message, enabled):
    with pytest.raises((RuntimeError, TypeError, ValueError), match=message), te.fp8_autocast(enabled=enabled):
        te.Linear(4, 3)(x)


@pytest.mark.parametrize(
    "op,layer",
    [
        ("norm", lambda: te.RMSNorm(4)),
        ("norm", lambda: te.LayerNorm(4)),
        ("norm_linear", lambda: te.LayerNormLinear(4, 3)),
        ("norm_mlp", lambda: te.LayerNormMLP(4, 8)),
    ],
)
@pytest.mark.parametrize("enabled", [False, True])
def test_an_input_of_another_width_is_named_and_no_weight(op, layer, enabled):
    with pytest.raises(RuntimeError, match=rf"{op}: expected x \[..., 4\], got \[2, 5\]"), te.fp8_autocast(enabled=enabled):
        layer()(torch.zeros(2, 5))


@pytest.mark.parametrize(
    "name,value",
    [
        ("input_amax_history", torch.zeros(16, dtype=torch.int64)),
        ("weight_amax_history", torch.zeros(16, dtype=torch.float64)),
        ("input_scale", torch.zeros(1, dtype=torch.float16)),
        ("grad_output_step", torch.zeros(1)),
    ],
)
def test_a_state_of_another_dtype_is_refused_where_it_is_loaded(name, value):
    module = te.Linear(4, 4)
    state = {**module.state_dict(), name: value}
    with pytest.raises(RuntimeError, match=f"expected {name} of {module.get_buffer(name).dtype}, got {value.dtype}"):
        module.load_state_dict(state)


def test_attention_inputs():
    module = te.DotProductAttention(2, 4)
    good, short = torch.zeros(3, 1, 2, 4), torch.zeros(3, 1, 2, 5)
    with pytest.raises(ValueError, match="key_layer .*got .3, 1, 2, 5."):
        module(good, short, good)
    with pytest.raises(TypeError, match="attention_mask of bool"):
        module(good, good, good, torch.zeros(3, 3), attn_mask_type="padding")
    for mask in (torch.zeros(1, 1, 1, 4) > 0, (torch.zeros(1, 1, 1, 2) > 0, torch.zeros(1, 1, 1, 3) > 0)):
        with pytest.raises(ValueError, match="attention_mask .*, 3., got .1, 1, 1, [24]."):
            module(good, good, good, mask, attn_mask_type="padding_causal_bottom_right")
    with pytest.raises(TypeError, match="attention_mask of bool .*got ()"):
        module(good, good, good, (), attn_mask_type="padding")
    with pytest.raises(TypeError, match="core_attention_bias a tensor, got None"):
        module(good, good, good, core_attention_bias_type="post_scale_bias")
    with pytest.raises(ValueError, match="hidden_states .*got .3, 1, 9."):
        te.MultiheadAttention(8, 2)(torch.zeros(3, 1, 9))
    with pytest.raises(ValueError, match="encoder_output"):
        te.MultiheadAttention(8, 2, attention_type="cross")(torch.zeros(3, 1, 8))


def test_fp8_between_modules_is_refused_by_name():
    with pytest.raises(NotImplementedError, match="fp8_output"):
        te.Linear(4, 4)(torch.zeros(1, 4), fp8_output=True)


def test_scopes_stay_in_order_after_errors():
    for _ in range(3):
        with pytest.raises(RuntimeError), te.fp8_autocast():
            te.Linear(4, 3)(torch.zeros(2, 5))
    with pytest.raises(RuntimeError, match="expected one that this thread has entered"):
        te.fp8_autocast().__exit__(None, None, None)


def test_a_library_for_another_torch_is_refused(monkeypatch, tmp_path):
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / plimsoll._library.NAME).write_bytes(b"")
    (folder / "plimsoll_torch_version").write_text("1.13.1\n")
    monkeypatch.setenv("PLIMSOLL_BUILD", str(tmp_path))
    with pytest.raises(ImportError, match=f"expected torch 1.13.1.*got torch {torch.__version__[:4]}"):
        plimsoll._library.load()
    (folder / plimsoll._library.NAME).unlink()
    with pytest.raises(ImportError, match="found none; run `make build`"):
        plimsoll._library.load()


def test_operands_of_attention_are_on_one_device():
    module = te.DotProductAttention(2, 4)
    good = torch.zeros(3, 1, 2, 4)
    for operands in ((good, good.to("meta"), good), (good, good, good.to("meta"))):
        with pytest.raises(RuntimeError, match="all operands on the cpu as the first, got one on the meta"):
            module(*operands)
    with pytest.raises(RuntimeError, match="all operands on the cpu as the first, got one on the meta"):
        module(good, good, good, torch.zeros(1, 1, 1, 3, device="meta") > 0, attn_mask_type="padding")


TRANSFORMS: dict[str, Any] = {
    "vmap": lambda call, x: torch.vmap(call)(x[None]),
    "grad": lambda call, x: torch.func.grad(lambda z: call(z).sum())(x),
    "per-sample gradients": lambda call, x: torch.vmap(torch.func.grad(lambda z: call(z).sum()))(x[None]),
    "jvp": lambda call, x: torch.func.jvp(call, (x,), (x,)),
    "jacrev": lambda call, x: torch.func.jacrev(call)(x),
    "hessian": lambda call, x: torch.func.hessian(lambda z: call(z).sum())(x),
}


def converted(module: torch.nn.Module) -> torch.nn.Module:
    plimsoll.convert(module)
    return module


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: te.Linear(4, 4),
        lambda: te.LayerNormLinear(4, 4),
        lambda: te.LayerNormMLP(4, 4),
        lambda: te.TransformerLayer(4, 4, 2),
        lambda: converted(torch.nn.Linear(4, 4)),
        lambda: converted(torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Linear(4, 4))),
    ],
)
def test_transforms_of_torch_func_are_one_error_that_says_what_to_do(make, transform, enabled):
    message = r"expected a call outside torch.func's transforms.*, got one inside (vmap|grad|jvp): .*convert_back\(model\)"
    with pytest.raises(NotImplementedError, match=message) as caught, te.fp8_autocast(enabled=enabled):
        TRANSFORMS[transform](make(), torch.randn(3, 2, 4))
    assert "\n" not in str(caught.value)


def test_forward_mode_is_an_error_and_a_function_called_with_other_parameters_is_none():
    import torch.autograd.forward_ad as forward_ad

    layer, x = te.Linear(4, 4), torch.randn(2, 4)
    with forward_ad.dual_level():
        assert layer(x).shape == (2, 4)
        with pytest.raises(NotImplementedError, match="Linear: .*got one inside forward AD"):
            layer(forward_ad.make_dual(x, x))
        duals = {name: forward_ad.make_dual(p.detach(), p.detach()) for name, p in layer.named_parameters()}
        with pytest.raises(NotImplementedError, match="Linear: .*got one inside forward AD"):
            torch.func.functional_call(layer, duals, (x,))
    doubled = {name: p * 2 for name, p in layer.named_parameters()}
    assert torch.equal(torch.func.functional_call(layer, doubled, (x,)), 2 * layer(x))
    assert torch.vmap(lambda row: layer(x).sum() + row)(x).shape == (2, 4)


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
def test_a_sparse_input_is_named_as_one(layout):
    x = torch.eye(4)
    sparse = getattr(x, layout)()
    linear = te.Linear(4, 4)
    assert torch.equal(linear(sparse), linear(x))  # in high precision it is torch's product
    with te.fp8_autocast():
        for module in (linear, converted(torch.nn.Linear(4, 4))):
            with pytest.raises(TypeError, match=r"Linear: expected inp a dense tensor, got one of layout sparse_.*to_dense\(\)"):
                module(sparse)
    for enabled in (False, True):
        for module in (te.LayerNormLinear(4, 4), te.LayerNormMLP(4, 4), te.RMSNorm(4)):
            message = "expected (inp|input) a dense tensor, got one of layout sparse_"
            with pytest.raises(TypeError, match=message), te.fp8_autocast(enabled=enabled):
                module(sparse)
        with pytest.raises(TypeError, match="GroupedLinear: expected inp a dense tensor"), te.fp8_autocast(enabled=enabled):
            te.GroupedLinear(1, 4, 4)(sparse, [4])
