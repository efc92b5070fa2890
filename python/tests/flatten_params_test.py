"""plimsoll.shard.FlattenParamsWrapper: one flat parameter has the values, gradients and steps of those that stand in it."""

import copy
import pickle

import pytest
import torch
from plimsoll.shard import FlattenParamsWrapper
from torch import nn


class Net(nn.Module):
    """A weight that two layers share, a norm with buffers, and an attribute of its own."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.norm = nn.Linear(3, 5), nn.BatchNorm1d(5)
        self.second, self.third = nn.Linear(5, 2), nn.Linear(5, 2)
        self.third.weight = self.second.weight
        self.width = 5

    def forward(self, x):
        hidden = self.norm(self.first(x))
        return self.second(hidden) + self.third(hidden).tanh()


X = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
SIZES = [15, 5, 5, 5, 10, 2, 2]  # of the parameters, each once


def flat(values):
    return torch.cat([value.reshape(-1) for value in values])


def test_a_flat_parameter_trains_with_the_bits_of_those_in_it():
    plain, wrapped = Net(), FlattenParamsWrapper(Net())
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.1) for model in (plain, wrapped)]
    for _ in range(5):
        for model, optimizer in zip((plain, wrapped), optimizers, strict=True):
            optimizer.zero_grad()
            model(X).square().sum().backward()
        assert wrapped.flat_param.grad is not None
        assert torch.equal(wrapped.flat_param.grad, flat(p.grad for p in plain.parameters()))
        for optimizer in optimizers:
            optimizer.step()
    assert wrapped.state_dict().keys() == plain.state_dict().keys()
    assert all(torch.equal(value, wrapped.state_dict()[name]) for name, value in plain.state_dict().items())


def test_names_are_fairscales():
    wrapped = FlattenParamsWrapper(Net())
    assert [(name, p.numel()) for name, p in wrapped.named_parameters()] == [("flat_param_0", sum(SIZES))]
    assert wrapped.flat_params == [wrapped.flat_param] and wrapped.flat_param is wrapped.flat_param_0
    assert wrapped.flat_param_names == ["flat_param_0"] and wrapped.is_flattened
    assert wrapped.num_params_managed == len(SIZES)
    names, shapes, numels = wrapped.metadata(0)
    assert names[:2] == ["_fpw_module.first.weight", "_fpw_module.first.bias"] and len(names) == 7
    assert shapes[0] == torch.Size([5, 3]) and numels == SIZES
    assert wrapped.module is wrapped._fpw_module and wrapped.width == 5
    assert FlattenParamsWrapper(nn.Sequential(nn.Linear(2, 4)))[0].weight.shape == (4, 2)
    with pytest.raises(AttributeError, match="breadth"):
        wrapped.breadth  # noqa: B018


def test_views_are_those_of_the_flat_parameter_or_of_other_data():
    wrapped = FlattenParamsWrapper(Net())
    assert [view.numel() for view in wrapped.get_param_views()] == SIZES
    assert next(wrapped.get_param_views()).data_ptr() == wrapped.flat_param.data_ptr()
    counted = torch.arange(float(sum(SIZES)))
    assert torch.equal(list(wrapped.get_param_views([counted]))[1], torch.arange(15.0, 20.0))
    with pytest.raises(ValueError, match="expected 44 elements, got 3"):
        next(wrapped.get_param_views([torch.ones(3)]))
    with pytest.raises(ValueError, match="expected 1 tensors, got 2"):
        next(wrapped.get_param_views([None, None]))


def test_lists_and_names_choose_what_becomes_flat():
    net = Net()
    lists = [[net.first.weight, net.first.bias], [net.second.weight]]
    wrapped = FlattenParamsWrapper(net, lists, ["early", "late"])
    assert [name for name, _ in wrapped.named_parameters()][:3] == [
        "flat_param_early",
        "flat_param_late",
        "_fpw_module.norm.weight",
    ]
    assert wrapped.flat_param_early.numel() == 20 and wrapped.metadata(1) == (["_fpw_module.second.weight"], [(2, 5)], [10])
    assert wrapped.third.weight is wrapped.second.weight
    with pytest.raises(RuntimeError, match="expected one flat parameter, got 2"):
        wrapped.flat_param  # noqa: B018
    net = Net()
    wrapped = FlattenParamsWrapper(net, [net.first.weight, net.first.bias])
    assert wrapped.flat_param.numel() == 20 and torch.equal(wrapped(X), Net()(X))
    assert list(FlattenParamsWrapper(nn.ReLU()).parameters()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (lambda net: ([[net.first.weight], [net.first.bias]], ["one"]), "expected a name for each of 2 lists, got 1"),
        (lambda net: ([[net.first.weight], [net.first.bias]], ["one", "one"]), "expected names that differ"),
        (lambda net: ([[net.first.weight], [net.first.weight]],), "got one twice"),
        (lambda net: ([[nn.Parameter(torch.ones(2))]],), "expected parameters of the module, got 1 others"),
        (
            lambda net: ([[net.first.weight, net.second.requires_grad_(False).weight]],),
            "expected one dtype, device and requires_grad",
        ),
    ],
)
def test_what_cannot_become_flat_is_an_error(arguments, said):
    net = Net()
    with pytest.raises(ValueError, match=said):
        FlattenParamsWrapper(net, *arguments(net))
    with pytest.raises(ValueError, match="expected no flat parameter inside"):
        FlattenParamsWrapper(FlattenParamsWrapper(Net()))


def test_inside_unflatten_params_the_module_has_its_parameters():
    wrapped = FlattenParamsWrapper(Net())
    before = wrapped.flat_param.detach().clone()
    with wrapped.unflatten_params(), torch.no_grad():
        assert [name for name, _ in wrapped.named_parameters()] == wrapped.metadata(0)[0]
        assert not wrapped.is_flattened and isinstance(wrapped.first.weight, nn.Parameter)
        assert wrapped.third.weight is wrapped.second.weight
        wrapped.first.weight.fill_(3)
        wrapped.first.bias = nn.Parameter(torch.full((5,), 4.0))  # other values put in its place
    assert torch.equal(wrapped.flat_param[:20], flat([torch.full((15,), 3.0), torch.full((5,), 4.0)]))
    assert torch.equal(wrapped.flat_param[20:], before[20:]) and wrapped.is_flattened
    other = [torch.zeros(sum(SIZES))]
    with wrapped.unflatten_params(flat_params=other), torch.no_grad():
        assert not wrapped.first.weight.any()
        wrapped.first.weight.fill_(7)
    assert (other[0][:15] == 7).all() and (wrapped.flat_param[:15] == 3).all()


def test_both_kinds_of_state_dicts_load():
    source = FlattenParamsWrapper(Net(seed=1))
    assert list(source.flat_state_dict()) == ["flat_param_0", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    for state in (source.state_dict(), source.flat_state_dict(), Net(seed=1).state_dict()):
        wrapped = FlattenParamsWrapper(Net(seed=2))
        assert not torch.equal(wrapped.flat_param, source.flat_param)
        wrapped.load_state_dict(state)
        assert torch.equal(wrapped.flat_param, source.flat_param)
    inside, plain = nn.Sequential(FlattenParamsWrapper(nn.Linear(3, 2))), nn.Sequential(nn.Linear(3, 2))
    assert list(inside.state_dict()) == list(plain.state_dict())
    inside.load_state_dict(plain.state_dict())
    assert torch.equal(inside[0].get_parameter("flat_param"), flat(plain.parameters()))
    plain.load_state_dict(inside.state_dict())


def test_what_is_missing_or_of_another_shape_is_named():
    wrapped = FlattenParamsWrapper(Net())
    state = wrapped.state_dict()
    with pytest.raises(RuntimeError, match="second.bias"):
        wrapped.load_state_dict({name: value for name, value in state.items() if name != "second.bias"})
    with pytest.raises(RuntimeError, match=r"first.bias: expected \[5\], got \[6\]"):
        wrapped.load_state_dict({**state, "first.bias": torch.ones(6)})
    before = wrapped.flat_param.detach().clone()
    wrapped.load_state_dict({"first.bias": torch.full((5,), 9.0)}, strict=False)
    assert (wrapped.flat_param[15:20] == 9).all() and torch.equal(wrapped.flat_param[20:], before[20:])


def test_copies_and_casts_keep_the_values():
    net = Net()
    wrapped = FlattenParamsWrapper(net, [[net.first.weight], [net.first.bias, net.norm.weight]], ["a", "b"]).eval()
    for twin in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert [name for name, _ in twin.named_parameters()] == [name for name, _ in wrapped.named_parameters()]
        assert torch.equal(twin(X), wrapped(X)) and not twin.training
        with torch.no_grad():
            twin.flat_param_a.zero_()
        assert not twin.first.weight.any() and wrapped.first.weight.any()
    assert wrapped.double().first.weight.dtype == torch.float64 and wrapped(X.double()).dtype == torch.float64
