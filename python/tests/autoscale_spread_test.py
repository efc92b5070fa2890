"""Results that 16 bits of one exponent do not hold: squares, inverses and statistics keep FP32 data until they meet 16 bits."""

from typing import Any

import plimsoll.autoscale as autoscale
import pytest
import torch
import torch.nn.functional as F
from torch import nn

DTYPES = [torch.float16, torch.bfloat16]
SIZES = {"as far apart as FP16 holds": [3000.0, 1.0, 0.1, 1e-3], "a row of zeros": [3000.0, 1.0, 0.1, 0.0]}
SMALL = [1.0, 1e-3, 0.0, 1e-6]


class SpelledOut(nn.Module):
    """transformers' LlamaRMSNorm."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        return self.weight * (wide * torch.rsqrt(variance + 1e-6)).to(x.dtype)


class Functional(nn.Module):
    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), eps=1e-6)


class ByHand(nn.Module):
    def forward(self, x):
        return x / (x * x).mean(-1, keepdim=True).add(1e-6).sqrt()


NORMS: dict[str, Any] = {
    "nn.RMSNorm": lambda width: nn.RMSNorm(width, eps=1e-6),
    "F.rms_norm": lambda width: Functional(),
    "LlamaRMSNorm": SpelledOut,
    "by hand": lambda width: ByHand(),
}


def rows_apart(sizes, width=64):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(len(sizes), width, generator=generator) * torch.tensor(sizes)[:, None]


def norm_of_difference(x, reference):
    return torch.linalg.vector_norm(x.double() - reference.double(), dim=-1)


def rounding(x: torch.Tensor) -> torch.Tensor:
    """Norm of what one rounding of the tensor to FP16 of one exponent takes from each row, at most."""
    data, scale = autoscale.get_data_scale(autoscale.as_scaled(x))
    smallest = torch.finfo(data.dtype).smallest_normal
    magnitude = (x.abs().double() / scale).clamp(min=smallest)
    return torch.linalg.vector_norm(magnitude, dim=-1) * scale * 2.0**-11


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("name", NORMS)
def test_rows_of_any_size_are_normalised_as_in_fp32(name, sizes):
    plain = NORMS[name](64)
    model: Any = autoscale.autoscale(NORMS[name](64))
    entering = autoscale.as_scaled(rows_apart(sizes))
    x = autoscale.value(entering).requires_grad_()  # what rounding leaves of the input is no fault of the norm
    scaled = entering.requires_grad_()
    gradient = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    expected, result = plain(x), model(scaled)
    expected.backward(gradient)
    result.backward(autoscale.as_scaled(gradient))
    assert autoscale.get_data_scale(result.detach())[0].dtype == torch.float16
    # Two roundings: times rstd, and times the weight.
    assert (norm_of_difference(autoscale.value(result.detach()), expected) <= 2 * rounding(expected.detach())).all()
    # The gradient's own rounding, and of each of its two terms those of three products.
    assert scaled.grad is not None and x.grad is not None
    assert (norm_of_difference(autoscale.value(scaled.grad), x.grad) <= 8 * rounding(x.grad)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_data_are_fp32_until_they_meet_16_bits(dtype):
    model: Any = autoscale.autoscale(nn.Linear(64, 8), dtype=dtype)
    x = model.weight.detach()

    def held(y):
        return autoscale.get_data_scale(y)[0].dtype

    spread = {
        "square": x.square(),
        "pow": x.pow(2),
        "cube": x**3,
        "itself": x * x,
        "inverse": 1 / x,
        "root": x.abs().rsqrt(),
        "variance": x.var(-1),
        "norm": torch.linalg.vector_norm(x, dim=-1),
        "sum": x.sum(-1),
        "mean": x.mean(0),
        "what follows": (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt().log() * 3,
    }
    assert {name: held(y) for name, y in spread.items()} == dict.fromkeys(spread, torch.float32)
    narrow = {
        "product of two": x * x.flip(0),
        "a row by its size": x * x.pow(2).mean(-1, keepdim=True).rsqrt(),
        "sum of two": x.pow(2) + x,
        "root": x.abs() ** 0.5,
        "sums of few": x.view(8, 32, 2).sum(-1),
        "matrix product": x.pow(2) @ x.t(),
    }
    assert {name: held(y) for name, y in narrow.items()} == dict.fromkeys(narrow, dtype)


ADDED = {
    "add": lambda x: x + 1e-8,
    "from the left": lambda x: 1e-8 + x,
    "sub": lambda x: x - 1e-8,
    "rsub": lambda x: 1e-8 - x,
    "add.Scalar": lambda x: torch.ops.aten.add.Scalar(x, 1e-8),
    "clamp": lambda x: x.clamp(min=1e-8),
    "maximum": lambda x: torch.maximum(x, torch.tensor(1e-8)),
    "masked_fill": lambda x: x.masked_fill(x == 0, 1e-8),
    "log": lambda x: torch.log(torch.softmax(100 * x, -1) + 1e-9),
}


@pytest.mark.parametrize("name", ADDED)
def test_a_constant_that_fp16_does_not_hold_stays(name):
    x = autoscale.as_scaled(torch.tensor(SMALL))
    expected = ADDED[name](autoscale.value(x))
    result = autoscale.value(ADDED[name](x))
    assert result[2] != 0
    # log is of a softmax that was rounded.
    torch.testing.assert_close(result, expected, rtol=2.0**-10 if name == "log" else 2.0**-22, atol=0)


BESIDE_LARGE = {
    "clamp": lambda x: x.clamp(max=1e15),
    "clamp between": lambda x: x.clamp(-1e6, 1e6),
    "where": lambda x: torch.where(x > 0.5, x, -1e9),
    "index_fill": lambda x: x.index_fill(1, torch.tensor([1]), -1e9),
    "scatter": lambda x: x.scatter(1, torch.zeros(8, 1, dtype=torch.long), 1e7),
    "pad": lambda x: F.pad(x, (1, 1), value=-1e5),
    "minimum": lambda x: torch.minimum(x, torch.tensor(1e9)),
    "plain tensor": lambda x: torch.cat([x, torch.full((1, 8), 1e9)]),
}


@pytest.mark.parametrize("name", BESIDE_LARGE)
def test_a_large_constant_leaves_the_other_elements(name):
    x = autoscale.as_scaled(rows_apart([1.0] * 8, width=8))
    expected = BESIDE_LARGE[name](autoscale.value(x))
    torch.testing.assert_close(autoscale.value(BESIDE_LARGE[name](x)), expected, rtol=2.0**-11, atol=0)


def test_data_stay_narrow_beside_a_constant_that_is_not_reached():
    x = autoscale.as_scaled(rows_apart([1.0] * 8, width=8))
    for y in (x.clamp(max=6e4), x.relu().clamp(max=6), x.masked_fill(x > 1, -1e4)):
        assert autoscale.get_data_scale(y)[0].dtype == torch.float16


def test_a_constant_that_is_lost_in_place_is_counted():
    x = autoscale.as_scaled(torch.tensor(SMALL))
    others = x[1:]  # which have the memory, too
    x.add_(0.5)
    assert "autoscale::lost_constant" not in {row.op for row in autoscale.report(x).ops}
    x.add_(1e-8)
    x.clamp_(min=1e-9)
    (row,) = (row for row in autoscale.report(x).ops if row.op == "autoscale::lost_constant")
    assert row.calls == 2
    x.masked_fill_(x > 0.9, -1e9)
    (row,) = (row for row in autoscale.report(x).ops if row.op == "autoscale::lost_constant")
    assert row.calls == 3 and torch.equal(autoscale.value(others), autoscale.value(x)[1:])


def test_a_constant_in_place_stays_in_a_memory_that_no_other_tensor_has():
    weight = autoscale.as_scaled(rows_apart([1.0] * 8, width=8)).requires_grad_()
    hidden = torch.ones(8, 8).triu(1) > 0
    plain = autoscale.value(weight.detach()).requires_grad_()

    def attend(x):
        scores = x @ torch.eye(8)
        scores /= 3
        scores.masked_fill_(hidden, -1e9)
        return F.softmax(scores, -1).square().sum()

    ours, expected = attend(weight), attend(plain)
    assert ours.item() == pytest.approx(expected.item(), rel=4 * 2.0**-11)
    ours.backward()
    expected.backward()
    assert weight.grad is not None and plain.grad is not None
    error = (autoscale.value(weight.grad) - plain.grad).abs().max()
    assert error <= 8 * 2.0**-11 * plain.grad.abs().max()
    assert "autoscale::lost_constant" not in {row.op for row in autoscale.report(ours).ops}
    x = autoscale.as_scaled(torch.tensor(SMALL))
    x.add_(1e-8).clamp_(max=1e15)
    torch.testing.assert_close(autoscale.value(x), autoscale.value(autoscale.as_scaled(torch.tensor(SMALL))) + 1e-8)


def test_a_constant_that_is_lost_under_another_policy_is_counted():
    x = autoscale.as_scaled(torch.tensor(SMALL), policy="none")
    assert autoscale.get_data_scale(x + 1e-9)[0].dtype == torch.float16
    assert "autoscale::lost_constant" in {row.op for row in autoscale.report(x).ops}


def test_rows_without_a_gradient_train_by_adafactor():
    optimization = pytest.importorskip("transformers.optimization")
    ids = torch.arange(6)

    def losses(prepare):
        torch.manual_seed(0)
        model = prepare(nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 8)))
        optimizer = optimization.Adafactor(model.parameters(), lr=1e-3, scale_parameter=False, relative_step=False)
        row = []
        for _ in range(6):
            loss = (model(ids) - 1).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            row.append(loss.item())
        return torch.tensor(row)

    # A loss has the roundings of data to FP16, squared differences twice.
    torch.testing.assert_close(losses(autoscale.autoscale), losses(lambda model: model), rtol=2 * 2.0**-10, atol=0)
