"""Views of parameters that are FP8 codes: what is written through them and what is read."""

import copy
import pickle

import plimsoll.pytorch as te
import pytest
import torch
from plimsoll.pytorch import QuantizedTensor


def held_weight():
    torch.manual_seed(4)
    with te.fp8_model_init():
        return te.Linear(32, 48).weight


def doubled_in_place(tensor):
    tensor.mul_(2)


WRITES = {
    "an index": lambda weight: weight.__setitem__(0, 7.0),
    "a slice": lambda weight: weight.__setitem__(slice(2, 9), torch.linspace(-1, 1, 32)),
    "a mask": lambda weight: weight.__setitem__(torch.arange(48) % 3 == 0, 0.5),
    "an element": lambda weight: weight.__setitem__((3, 4), 2.0),
    "a flat view": lambda weight: weight.view(-1).fill_(0.25),
    "a view of a view": lambda weight: doubled_in_place(weight[4:8].t()[3:5].unsqueeze(0)),
    "one of several": lambda weight: weight.chunk(3)[1].zero_(),
    "data": lambda weight: weight.data[1:3].fill_(3),
    "a row from another": lambda weight: weight[0].copy_(weight[1]),
    "an initialiser": lambda weight: torch.nn.init.constant_(weight[:5], 0.75),
    "orthogonal_": lambda weight: (torch.manual_seed(1), torch.nn.init.orthogonal_(weight)),
    "out": lambda weight: torch.mul(torch.ones(32), 3, out=weight[2]),
}


@pytest.mark.parametrize("write", WRITES)
def test_what_is_written_through_a_view_is_quantized(write):
    weight = held_weight()
    values, codes, other = weight.dequantize(), weight.codes, weight.detach()
    with torch.no_grad():
        WRITES[write](weight)
        WRITES[write](values)
    assert torch.equal(weight.dequantize(), QuantizedTensor.quantize(values).dequantize())
    assert weight.codes is codes and torch.equal(other.dequantize(), weight.dequantize())


def test_a_view_reads_as_plain_tensors_do():
    weight = held_weight()
    values = weight.dequantize().requires_grad_()
    for one in (weight, values):
        (one.t()[2:5].exp().sum() + one.view(-1)[3] * one.unbind()[7].norm() + (torch.ones(2, 32) @ one.mT).sum()).backward()
    assert torch.equal(weight.grad, values.grad)
    row, same = weight.detach()[3], values.detach()[3]
    assert row.tolist() == same.tolist() and (row.numpy() == same.numpy()).all() and repr(row) == repr(same)
    assert row.stride() == same.stride() and weight.t().stride() == values.t().stride()
    for plain in (row + 0, copy.deepcopy(row), pickle.loads(pickle.dumps(row))):
        assert type(plain) is torch.Tensor and torch.equal(plain, same)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        weight[0] = 7
