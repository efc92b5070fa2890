"""_scaled_mm under plimsoll.accelerate(): products of FP8 codes, whose exact result is that of their values in FP64."""

import plimsoll
import pytest
import torch
from rounding import gamma, within

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
M, N, K = 33, 48, 80
Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]  # codes [m, k] and [k, n], a scale of each


@pytest.fixture(autouse=True)
def ours():
    with plimsoll.accelerated():
        torch._scaled_mm(*operands(), out_dtype=FP32)
        if not outcomes().get("replaced"):
            pytest.skip("no rule for this processor")
        plimsoll.reset_acceleration_report()
        yield


def outcomes():
    return {reason: calls for reason, calls in plimsoll.acceleration_report().get("scaled_mm", {}).items() if calls}


def operands(rows: bool = False, a_dtype=E4M3, b_dtype=E4M3, sizes=(M, N, K)) -> Operands:
    torch.manual_seed(0)
    m, n, k = sizes
    a, b = torch.randn(m, k).to(a_dtype), torch.randn(n, k).to(b_dtype).t()
    scales = (torch.rand(m, 1) + 0.5, torch.rand(1, n) + 0.5) if rows else (torch.tensor(0.3), torch.tensor(1.7))
    return a, b, *scales


def exact_and_bound(a, b, scale_a, scale_b, bias, dtype):
    """In FP64, and the most that it may be missed by: k additions of products, the scales and the bias, a rounding each, then that
    to the dtype."""
    left, right = a.double() * scale_a, b.double() * scale_b
    exact, magnitude = left @ right, left.abs() @ right.abs()
    if bias is not None:
        exact, magnitude = exact + bias.double(), magnitude + bias.double().abs()
    error = gamma(a.size(1) + 4) * magnitude
    return exact, error + (exact.abs() + error) * (0 if dtype is FP32 else torch.finfo(dtype).eps / 2)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize("bias_dtype", [None, FP32, BF16])
def test_products_are_within_their_bound(rows, dtype, bias_dtype):
    call = operands(rows)
    bias = None if bias_dtype is None else torch.randn(N).to(bias_dtype)
    result = torch._scaled_mm(*call, bias=bias, out_dtype=dtype)
    assert outcomes() == {"replaced": 1} and result.dtype is dtype
    exact, bound = exact_and_bound(*call, bias, dtype)
    assert within(result, exact, bound)
    assert not within(result + 3 * bound.max().to(dtype), exact, bound)
    plimsoll.accelerate(False)
    torchs = torch._scaled_mm(*call, bias=bias, out_dtype=dtype)
    assert within(torchs, exact, bound)
    assert (result.shape, result.stride(), result.dtype) == (torchs.shape, torchs.stride(), torchs.dtype)


@pytest.mark.parametrize("pair", [(E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)])
def test_e5m2_beside_e4m3(pair):
    call = operands(True, *pair)
    result = torch._scaled_mm(*call, out_dtype=FP32)
    assert outcomes() == {"replaced": 1} and within(result, *exact_and_bound(*call, None, FP32))


@pytest.mark.parametrize("sizes", [(1, 64, 128), (7, 1, 768), (5, 129, 31), (64, 64, 1)])
def test_any_sizes(sizes):
    for rows in (False, True):
        call = operands(rows, sizes=sizes)
        assert within(torch._scaled_mm(*call, out_dtype=BF16), *exact_and_bound(*call, None, BF16))
    assert outcomes() == {"replaced": 2}


def test_layouts_are_read_as_they_lie():
    a, b, scale_a, scale_b = operands(True)
    exact, bound = exact_and_bound(a, b, scale_a, scale_b, None, FP32)
    for left in (a, a.t().contiguous().t()):
        for right in (b, b.contiguous()):
            assert within(torch._scaled_mm(left, right, scale_a, scale_b, out_dtype=FP32), exact, bound)
    assert outcomes() == {"replaced": 4}


def test_a_code_that_is_no_number_reaches_its_row_or_column():
    a, b, scale_a, scale_b = operands()
    a, b = a.clone(), b.t().clone().t()
    a[3, 5] = b[7, 11] = torch.nan
    result = torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=FP32)
    expected = torch.zeros(M, N, dtype=torch.bool)
    expected[3], expected[:, 11] = True, True
    assert torch.equal(result.isnan(), expected)


def test_the_callers_tensor_is_written():
    call = operands()
    out = torch.empty(M, N, dtype=BF16)
    assert torch._scaled_mm(*call, out_dtype=BF16, out=out) is out
    assert torch.equal(out, torch._scaled_mm(*call, out_dtype=BF16)) and outcomes() == {"replaced": 2}


@pytest.mark.skipif(not hasattr(torch.nn.functional, "scaled_mm"), reason="this torch has no scaled_mm")
def test_scaled_mm_by_recipes():
    functional = torch.nn.functional
    per_tensor, per_row = functional.ScalingType.TensorWise, functional.ScalingType.RowWise

    def product(a, b, p, q, p_recipe, q_recipe):
        return functional.scaled_mm(a, b, p, p_recipe, q, q_recipe, output_dtype=BF16)

    for rows, recipe in ((False, per_tensor), (True, per_row)):
        call = operands(rows)
        assert within(product(*call, recipe, recipe), *exact_and_bound(*call, None, BF16))
    assert outcomes() == {"replaced": 2}
    for recipes in ((per_tensor, per_row), (functional.ScalingType.BlockWise1x128,) * 2):
        with pytest.raises((RuntimeError, ValueError)):
            product(*operands(True), *recipes)
    assert outcomes() == {"replaced": 2, "shape": 2}


def test_what_is_not_ours_goes_where_it_went():
    a, b, scale_a, scale_b = operands()
    cases = {
        "dtype": lambda: torch._scaled_mm(a, b, scale_a, scale_b),  # the result would be codes
        "shape": lambda: torch._scaled_mm(a, b, scale_a, scale_b, scale_result=torch.tensor(2.0), out_dtype=BF16),
        "size": lambda: torch._scaled_mm(a[:1, :16], b[:16, :16], scale_a, scale_b, out_dtype=BF16),
    }
    for reason, call in cases.items():
        plimsoll.accelerate(False)
        expected = call()
        plimsoll.accelerate()
        plimsoll.reset_acceleration_report()
        assert torch.equal(call().float(), expected.float()), reason
        assert outcomes() == {reason: 1}


@pytest.mark.parametrize(
    "call",
    [
        lambda a, b, p, q: torch._scaled_mm(a, b[:5], p, q, out_dtype=BF16),
        lambda a, b, p, q: torch._scaled_mm(a, b, torch.ones(M), torch.ones(N), out_dtype=BF16),
        lambda a, b, p, q: torch._scaled_mm(a, b, p, q, bias=torch.ones(3), out_dtype=BF16),
        lambda a, b, p, q: torch._scaled_mm(a.float(), b.float(), p, q, out_dtype=BF16),
    ],
)
def test_mistakes_have_torchs_own_errors(call):
    arguments = operands()
    with pytest.raises((RuntimeError, ValueError)) as mine:
        call(*arguments)
    plimsoll.accelerate(False)
    with pytest.raises((RuntimeError, ValueError)) as theirs:
        call(*arguments)
    assert str(mine.value) == str(theirs.value)


def test_scales_in_double_are_torchs():
    """Torch refuses them, or, where oneDNN has tiles, takes them."""

    def run():
        a, b, p, q = operands()
        try:
            return torch._scaled_mm(a, b, p.double(), q, out_dtype=BF16)
        except (RuntimeError, ValueError) as error:
            return str(error)

    mine = run()
    assert outcomes() == {"dtype": 1}
    plimsoll.accelerate(False)
    theirs = run()
    assert torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs
