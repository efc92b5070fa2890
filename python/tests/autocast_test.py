"""plimsoll.amp.autocast: torch.autocast under one table of precisions."""

import contextlib
import copy
import itertools
import pathlib
import threading
from typing import Any, cast

import plimsoll.pytorch as te
import pytest
import torch
from plimsoll.amp import autocast, precision_policy
from plimsoll.common import recipe
from rounded_results import RoundedResults
from rounding import rounds_alike

HALF, BFLOAT = torch.float16, torch.bfloat16
DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


def state():
    return (
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        torch.softmax(torch.ones(2, dtype=HALF), 0).dtype,  # whether the table holds
    )


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    before = state()
    yield
    assert state() == before == (False, BFLOAT, True, HALF)


# Operators of the table that the loop below cannot make up arguments for, each with a call; None: no CPU kernel, or covered
# by the operator that it is part of.
T = torch.ops.aten


def rows(*shape):
    return torch.rand(*shape) + 0.5


CALLS = {
    "_convolution": lambda c: T._convolution(
        c(1, 2, 5), c(3, 2, 3), None, [1], [0], [1], False, [0], 1, False, False, True, False
    ),
    "_convolution.deprecated": None,
    "_scaled_dot_product_flash_attention": None,
    "_thnn_fused_gru_cell": None,
    "_thnn_fused_lstm_cell": None,
    "addbmm": lambda c: T.addbmm(c(3, 3), c(2, 3, 3), c(2, 3, 3)),
    "addmm": lambda c: T.addmm(c(3, 3), c(3, 3), c(3, 3)),
    "addmv": lambda c: T.addmv(c(3), c(3, 3), c(3)),
    "addr": lambda c: T.addr(c(3, 3), c(3), c(3)),
    "baddbmm": lambda c: T.baddbmm(c(2, 3, 3), c(2, 3, 3), c(2, 3, 3)),
    "bmm": lambda c: T.bmm(c(2, 3, 3), c(2, 3, 3)),
    "chain_matmul": lambda c: T.chain_matmul([c(3, 3), c(3, 3), c(3, 3)]),
    "conv1d": lambda c: T.conv1d(c(1, 2, 5), c(3, 2, 3)),
    "conv2d": lambda c: T.conv2d(c(1, 2, 5, 5), c(3, 2, 3, 3)),
    "conv3d": lambda c: T.conv3d(c(1, 2, 5, 5, 5), c(3, 2, 3, 3, 3)),
    "conv_tbc": lambda c: T.conv_tbc(c(5, 1, 2), c(3, 2, 4), c(4)),
    "conv_transpose1d": lambda c: T.conv_transpose1d(c(1, 2, 5), c(2, 3, 3)),
    "conv_transpose2d.input": lambda c: T.conv_transpose2d.input(c(1, 2, 5, 5), c(2, 3, 3, 3)),
    "conv_transpose3d.input": lambda c: T.conv_transpose3d.input(c(1, 2, 5, 5, 5), c(2, 3, 3, 3, 3)),
    "convolution": lambda c: T.convolution(c(1, 2, 5), c(3, 2, 3), None, [1], [0], [1], False, [0], 1),
    "einsum": lambda c: T.einsum("ij,jk", [c(3, 3), c(3, 3)]),
    "gru_cell": lambda c: T.gru_cell(c(2, 3), c(2, 3), c(9, 3), c(9, 3), c(9), c(9)),
    "linalg_multi_dot": lambda c: T.linalg_multi_dot([c(3, 3), c(3, 3), c(3, 3)]),
    "linalg_vecdot": lambda c: T.linalg_vecdot(c(3), c(3)),
    "linear": lambda c: T.linear(c(3, 3), c(3, 3)),
    "lstm_cell": lambda c: T.lstm_cell(c(2, 3), [c(2, 3), c(2, 3)], c(12, 3), c(12, 3), c(12), c(12)),
    "matmul": lambda c: T.matmul(c(3, 3), c(3, 3)),
    "mm": lambda c: T.mm(c(3, 3), c(3, 3)),
    "mv": lambda c: T.mv(c(3, 3), c(3)),
    "prelu": lambda c: T.prelu(c(3, 3), c(3)),
    "rnn_relu_cell": lambda c: T.rnn_relu_cell(c(2, 3), c(2, 3), c(3, 3), c(3, 3), c(3), c(3)),
    "rnn_tanh_cell": lambda c: T.rnn_tanh_cell(c(2, 3), c(2, 3), c(3, 3), c(3, 3), c(3), c(3)),
    "scaled_dot_product_attention": lambda c: T.scaled_dot_product_attention(c(1, 1, 3, 4), c(1, 1, 3, 4), c(1, 1, 3, 4)),
    "_upsample_bicubic2d_aa": lambda c: T._upsample_bicubic2d_aa(c(1, 1, 4, 4), [2, 2], False),
    "_upsample_bilinear2d_aa": lambda c: T._upsample_bilinear2d_aa(c(1, 1, 4, 4), [2, 2], False),
    "_upsample_nearest_exact1d": lambda c: T._upsample_nearest_exact1d(c(1, 1, 4), [2]),
    "_upsample_nearest_exact2d": lambda c: T._upsample_nearest_exact2d(c(1, 1, 4, 4), [2, 2]),
    "_upsample_nearest_exact3d": lambda c: T._upsample_nearest_exact3d(c(1, 1, 4, 4, 4), [2, 2, 2]),
    "binary_cross_entropy_with_logits": lambda c: T.binary_cross_entropy_with_logits(c(3), c(3)),
    "cdist": lambda c: T.cdist(c(3, 3), c(3, 3)),
    "cosine_embedding_loss": lambda c: T.cosine_embedding_loss(c(2, 3), c(2, 3), c(2)),
    "cosine_similarity": lambda c: T.cosine_similarity(c(2, 3), c(2, 3)),
    "cumprod": lambda c: T.cumprod(c(3), 0),
    "cumsum": lambda c: T.cumsum(c(3), 0),
    "dist": lambda c: T.dist(c(3), c(3)),
    "frobenius_norm.dim": lambda c: T.frobenius_norm.dim(c(3, 3), [1]),
    "group_norm": lambda c: T.group_norm(c(2, 4, 3), 2),
    "hinge_embedding_loss": lambda c: T.hinge_embedding_loss(c(3), torch.ones(3)),
    "huber_loss": lambda c: T.huber_loss(c(3), c(3)),
    "kl_div": lambda c: T.kl_div(c(3), c(3)),
    "l1_loss": lambda c: T.l1_loss(c(3), c(3)),
    "layer_norm": lambda c: T.layer_norm(c(3, 4), [4], c(4), c(4)),
    "linalg_matrix_norm": lambda c: T.linalg_matrix_norm(c(3, 3), 1),
    "linalg_matrix_norm.str_ord": lambda c: T.linalg_matrix_norm.str_ord(c(3, 3)),
    "log_softmax.int": lambda c: T.log_softmax.int(c(3), 0),
    "logsumexp": lambda c: T.logsumexp(c(3), [0]),
    "margin_ranking_loss": lambda c: T.margin_ranking_loss(c(3), c(3), torch.ones(3)),
    "mse_loss": lambda c: T.mse_loss(c(3), c(3)),
    "multi_margin_loss": lambda c: T.multi_margin_loss(c(2, 3), torch.tensor([0, 2])),
    "multilabel_margin_loss": lambda c: T.multilabel_margin_loss(c(2, 3), torch.tensor([[0, -1, 1], [1, 2, -1]])),
    "native_layer_norm": lambda c: T.native_layer_norm(c(3, 4), [4], c(4), c(4), 1e-5),
    "nll_loss": lambda c: T.nll_loss(c(2, 3), torch.tensor([0, 2])),
    "nll_loss2d": lambda c: T.nll_loss2d(c(1, 3, 2, 2), torch.zeros(1, 2, 2, dtype=torch.long)),
    "norm.ScalarOpt_dim": lambda c: T.norm.ScalarOpt_dim(c(3, 3), 2, [1]),
    "nuclear_norm.dim": lambda c: T.nuclear_norm.dim(c(3, 3), [0, 1]),
    "pdist": lambda c: T.pdist(c(3, 3)),
    "poisson_nll_loss": lambda c: T.poisson_nll_loss(c(3), c(3), True, False, 1e-8, 1),
    "pow.Scalar": lambda c: T.pow.Scalar(2, c(3)),
    "pow.Tensor_Scalar": lambda c: T.pow.Tensor_Scalar(c(3), 2),
    "pow.Tensor_Tensor": lambda c: T.pow.Tensor_Tensor(c(3), c(3)),
    "prod.dim_int": lambda c: T.prod.dim_int(c(3), 0),
    "renorm": lambda c: T.renorm(c(3, 3), 2, 0, 1.0),
    "rms_norm": lambda c: T.rms_norm(c(3, 4), [4], c(4)),
    "smooth_l1_loss": lambda c: T.smooth_l1_loss(c(3), c(3)),
    "soft_margin_loss": lambda c: T.soft_margin_loss(c(3), torch.ones(3)),
    "softmax.int": lambda c: T.softmax.int(c(3), 0),
    "sum.dim_IntList": lambda c: T.sum.dim_IntList(c(3), [0]),
    "triplet_margin_loss": lambda c: T.triplet_margin_loss(c(2, 3), c(2, 3), c(2, 3)),
    "upsample_bicubic2d": lambda c: T.upsample_bicubic2d(c(1, 1, 4, 4), [2, 2], False),
    "upsample_bilinear2d": lambda c: T.upsample_bilinear2d(c(1, 1, 4, 4), [2, 2], False),
    "upsample_linear1d": lambda c: T.upsample_linear1d(c(1, 1, 4), [2], False),
    "upsample_nearest1d": lambda c: T.upsample_nearest1d(c(1, 1, 4), [2]),
    "upsample_nearest2d": lambda c: T.upsample_nearest2d(c(1, 1, 4, 4), [2, 2]),
    "upsample_nearest3d": lambda c: T.upsample_nearest3d(c(1, 1, 4, 4, 4), [2, 2, 2]),
    "upsample_trilinear3d": lambda c: T.upsample_trilinear3d(c(1, 1, 4, 4, 4), [2, 2, 2], False),
    "addcdiv": lambda c: T.addcdiv(c(3), c(3), c(3)),
    "addcmul": lambda c: T.addcmul(c(3), c(3), c(3)),
    "atan2": lambda c: T.atan2(c(3), c(3)),
    "bilinear": lambda c: T.bilinear(c(2, 3), c(2, 3), c(4, 3, 3), c(4)),
    "cross": lambda c: T.cross(c(2, 3), c(2, 3), 1),
    "dot": lambda c: T.dot(c(3), c(3)),
    "index_put": lambda c: T.index_put(c(3), [torch.tensor([0, 2])], c(2)),
    "scatter_add": lambda c: T.scatter_add(c(3), 0, torch.tensor([0, 2]), c(2)),
    "tensordot": lambda c: T.tensordot(c(3, 3), c(3, 3), [1], [0]),
    "vdot": lambda c: T.vdot(c(3), c(3)),
}


def call_of(op):
    """Call of the operator on tensors that a function of their shapes makes; of one tensor where CALLS says nothing."""
    name, _, overload = op.partition(".")
    plain = getattr(getattr(T, name), overload or "default")
    return (
        CALLS[op] if op in CALLS else lambda c: plain(c(3, 3).clamp(max=0.9) if name in ("acos", "asin", "erfinv") else c(3, 3))
    )


def dtypes_of(result):
    tensors = result if isinstance(result, (list, tuple)) else [result]
    return {tensor.dtype for tensor in tensors}


TABLE = [row for row in precision_policy.table() if CALLS.get(row[0], True)]


@pytest.mark.parametrize("dtype", [HALF, BFLOAT], ids=str)
@pytest.mark.parametrize("op,precision", [row[:2] for row in TABLE], ids=[row[0] for row in TABLE])
def test_each_row_computes_in_its_precision(op, precision, dtype):
    call = call_of(op)
    expected = {"narrow": dtype, "fp32": torch.float32, "widest": torch.float32}[precision]
    mixed = itertools.cycle([torch.float32, dtype])
    torch.manual_seed(1)
    with autocast("cpu", dtype):
        if precision != "widest" or op != "index_put":
            assert dtypes_of(call(lambda *shape: rows(*shape).to(next(mixed)))) == {expected}
        narrow = dtypes_of(call(lambda *shape: rows(*shape).to(dtype)))
    assert narrow == ({torch.float32} if precision == "fp32" else {dtype})


def test_the_table_is_torchs_of_cuda():
    named = {"aten::" + op for op, _, _ in precision_policy.table()}
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    on_cuda = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::") and has(name, "AutocastCUDA")}
    # cuDNN's own, and one that is an error there.
    rest = {"aten::_cudnn_rnn", "aten::cudnn_convolution", "aten::cudnn_convolution_transpose", "aten::binary_cross_entropy"}
    # Dimensions with names, which torch 2.13 has no more.
    rest |= {name for name in on_cuda if "dimname" in name.lower() or ".names_" in name}
    promoted = {name for name in on_cuda - named - rest if has(name, "AutocastCPU")}
    since_2_12 = {"aten::rms_norm"}
    assert named - on_cuda == (set() if torch.__version__ >= "2.12" else since_2_12)
    assert on_cuda - named - rest == promoted, "torch's CPU autocast has what is not in the table"


def test_the_document_is_the_table():
    assert (DOCS / "precision_policy.md").read_text() == precision_policy.markdown()


@pytest.mark.parametrize("dtype", [HALF, BFLOAT], ids=str)
def test_sums_and_exponentials_are_those_of_fp32(dtype):
    x = torch.full((3000,), 100.0, dtype=dtype)
    with autocast("cpu", dtype):
        assert x.sum().item() == 300_000
        assert torch.equal(torch.exp(torch.tensor([30.0], dtype=dtype)), torch.exp(torch.tensor([30.0])))
        assert torch.softmax(x, 0, dtype=dtype).dtype == dtype  # the caller's
        assert torch.ones(3, dtype=torch.int32).sum().dtype == torch.int64
        assert x.double().sum().dtype == torch.float64


def test_a_model_trains_under_it():
    torch.manual_seed(1)
    model: Any = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    x, target = torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    with autocast("cpu", HALF):
        loss = torch.nn.functional.mse_loss(model(x), target)
    assert loss.dtype == torch.float32
    loss.backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())
    plain, rounded = copy.deepcopy(model), copy.deepcopy(model)
    for each, scope in ((plain, contextlib.nullcontext()), (rounded, RoundedResults(11))):
        each.zero_grad()
        with scope:
            torch.nn.functional.mse_loss(each(x), target).backward()
    for mine, theirs, other in zip(*(each.parameters() for each in (model, rounded, plain)), strict=True):
        assert rounds_alike(mine.grad, theirs.grad, other.grad)


def test_it_nests_and_switches_off_inside():
    weight = torch.rand(3, 3, requires_grad=True)
    with autocast("cpu", HALF):
        assert (torch.ones(3, 3) @ weight).dtype == HALF
        with autocast("cpu", BFLOAT):
            assert (torch.ones(3, 3) @ weight).dtype == BFLOAT  # not the cast that the outer scope keeps
        with autocast("cpu", enabled=False):
            assert (torch.ones(3, 3) @ weight).dtype == torch.float32
        with torch.autocast("cpu", BFLOAT):
            assert torch.ones(2, dtype=BFLOAT).sum().dtype == torch.float32
        assert (torch.ones(3, 3) @ weight).dtype == HALF


def test_torchs_own_stays_as_it_is():
    with torch.autocast("cpu", HALF):
        assert torch.softmax(torch.ones(2, dtype=HALF), 0).dtype == HALF
        assert torch.tensordot(torch.ones(2, 2), torch.ones(2, 2), 1).dtype == HALF  # the product inside is narrow
        with autocast("cpu", HALF):
            assert torch.softmax(torch.ones(2, dtype=HALF), 0).dtype == torch.float32
        assert torch.softmax(torch.ones(2, dtype=HALF), 0).dtype == HALF


def test_one_scope_may_be_entered_inside_itself():
    scope = autocast("cpu", HALF, cache_enabled=False)
    with scope:
        with scope:
            pass
        assert torch.is_autocast_enabled("cpu")

    @scope
    def depth(n):
        assert torch.get_autocast_dtype("cpu") == HALF
        return 0 if n == 0 else 1 + depth(n - 1)

    assert depth(3) == 3


def test_it_decorates_forward_in_any_thread():
    class Model(torch.nn.Linear):
        @autocast("cpu", HALF)
        def forward(self, x):
            return super().forward(x)

    model, outputs, states = Model(3, 3), [], []

    def run():
        for _ in range(20):
            outputs.append(model(torch.ones(2, 3)).dtype)
        states.append(state())

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(outputs) == {HALF} and len(outputs) == 80
    assert set(states) == {(False, BFLOAT, True, HALF)}


def test_nothing_leaks_after_exceptions_in_threads():
    states = []

    def run():
        for _ in range(3):
            try:
                with autocast("cpu", HALF), autocast("cpu", BFLOAT, cache_enabled=False):
                    raise KeyError
            except KeyError:
                states.append(state())

    thread = threading.Thread(target=run)
    with autocast("cpu", HALF):
        thread.start()
        thread.join()
    assert states == [(False, BFLOAT, True, HALF)] * 3
    with pytest.raises(KeyError):
        run_and_raise()


@autocast("cpu", HALF)
def run_and_raise():
    raise KeyError


@pytest.mark.parametrize("dtype", [HALF, BFLOAT], ids=str)
def test_fp8_scopes_combine_with_it(dtype):
    torch.manual_seed(1)
    layer, head = te.Linear(32, 32), torch.nn.Linear(32, 4)
    with autocast("cpu", dtype), te.fp8_autocast(fp8_recipe=recipe.Float8CurrentScaling()):
        hidden = layer(torch.randn(8, 32))
        logits = head(hidden)
        loss = torch.nn.functional.cross_entropy(logits, torch.zeros(8, dtype=torch.long))
    assert (hidden.dtype, logits.dtype, loss.dtype) == (dtype, dtype, torch.float32)
    loss.backward()
    assert layer.weight.grad is not None and layer.weight.grad.dtype == torch.float32 and layer.weight.grad.abs().sum() > 0


def test_without_a_device_it_is_that_of_the_machine():
    narrow = torch.float16 if torch.cuda.is_available() else torch.bfloat16
    x = torch.ones(2, 2, device="cuda" if torch.cuda.is_available() else "cpu")

    @autocast()
    def product():
        return x @ x

    with autocast():
        assert (x @ x).dtype == narrow
    with autocast(enabled=False):
        assert (x @ x).dtype == torch.float32
    with autocast(dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
    assert product().dtype == narrow


@pytest.mark.parametrize("device_type,error", [(0, ValueError), ("meta", RuntimeError), ("boat", RuntimeError)])
def test_bad_arguments_are_torchs_errors(device_type, error):
    messages = []
    for kind in (torch.autocast, autocast):
        with pytest.raises(error) as caught:
            kind(device_type)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_what_it_decorates_and_its_dtype_are_checked():
    with pytest.raises(TypeError, match="requires a callable"):
        autocast("cpu")(cast(Any, 3))
    with pytest.warns(UserWarning, match="target dtype is not supported"):
        assert not autocast("cpu", torch.float64)._enabled
