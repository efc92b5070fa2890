"""Models that are not in FP32: the dtype is that of values, and data are as they are in a model in FP32."""

from typing import Any

import plimsoll.autoscale as autoscale
import pytest
import torch
import torch.nn.functional as F
from torch import nn


def loss_of(name: str, model: Any, x: torch.Tensor) -> Any:
    y = model(x)
    if name == "cross_entropy":
        return F.cross_entropy(y, torch.arange(len(x)) % 8)
    return (y.square() * y.detach().roll(1, 0)).mean()


MODELS = {
    "softmax": (lambda: nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)), (4, 8)),
    "log_softmax": (lambda: nn.Sequential(nn.Linear(8, 8), nn.LogSoftmax(-1)), (4, 8)),
    "cross_entropy": (lambda: nn.Linear(8, 8), (4, 8)),
    "batch_norm": (lambda: nn.BatchNorm1d(8), (4, 8)),
    "batch_norm in evaluation": (lambda: nn.BatchNorm1d(8).eval(), (4, 8)),
    "layer_norm": (lambda: nn.LayerNorm(8), (4, 8)),
    "group_norm": (lambda: nn.GroupNorm(2, 8), (4, 8)),
    "conv": (lambda: nn.Conv1d(8, 8, 3), (2, 8, 9)),
    "instance_norm": (lambda: nn.InstanceNorm1d(4, affine=True, track_running_stats=True), (2, 4, 9)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0), (2, 4, 8)),
}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16, torch.double])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_any_dtype_trains(name, dtype, after):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    plain = make().double()
    torch.manual_seed(0)
    model = autoscale.autoscale(make()).to(dtype) if after else autoscale.autoscale(make().to(dtype))
    x = torch.randn(shape).to(dtype)
    expected, loss = loss_of(name, plain, x.double()), loss_of(name, model, x)
    expected.backward()
    loss.backward()
    mine, theirs = ([p.grad for p in each.parameters() if p.grad is not None] for each in (model, plain))
    assert loss.dtype == dtype and all(gradient.dtype == dtype for gradient in mine)
    # The dtype's rounding of each of the values on the way.
    bound = 16 * max(torch.finfo(dtype).eps, 2.0**-10)
    largest = max(gradient.abs().max().item() for gradient in theirs)
    for gradient, reference in zip(mine, theirs, strict=True):
        assert (autoscale.value(gradient).double() - reference).abs().max() <= bound * largest
    for buffer, exact in zip(model.buffers(), plain.buffers(), strict=True):
        assert buffer.dtype in (dtype, torch.int64)
        torch.testing.assert_close(buffer.double(), exact.double(), rtol=bound, atol=bound)
