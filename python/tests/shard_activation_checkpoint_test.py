"""checkpoint_wrapper: the bits of the module without it, in less memory."""

import copy
import io
from typing import Any, cast

import pytest
import torch
from plimsoll.common.recipe import DelayedScaling
from plimsoll.pytorch import Linear, autocast
from plimsoll.shard import checkpoint, checkpoint_wrapper, disable_checkpointing
from torch import nn


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 8))
        self.runs = 0

    def forward(self, x: torch.Tensor, *, factor: float = 1.0) -> dict[str, torch.Tensor]:
        self.runs += 1
        return {"y": self.layers(x) * factor}


def trained(model: nn.Module, steps: int = 3) -> list[torch.Tensor]:
    """Losses, gradients of the last step and state after some steps of SGD."""
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(12, 8, requires_grad=True)
        loss = model(x, factor=2.0)["y"].square().mean()
        loss.backward()
        optimizer.step()
        losses += [loss.detach(), x.grad]
    return losses + [parameter.grad for parameter in model.parameters()] + list(model.state_dict().values())


@pytest.mark.parametrize("offload_to_cpu", [False, True])
def test_nothing_changes_but_the_number_of_runs(offload_to_cpu: bool) -> None:
    torch.manual_seed(1)
    plain = Counted()
    wrapped = checkpoint_wrapper(copy.deepcopy(plain), offload_to_cpu)
    expected, got = trained(plain), trained(wrapped)
    assert len(expected) == len(got)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=False))
    assert cast(Any, (plain.runs, wrapped.runs)) == (3, 6)
    assert list(plain.state_dict()) == list(wrapped.state_dict())


def saved_bytes(model: nn.Module, x: torch.Tensor) -> int:
    storages: dict[int, int] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()} | {x.untyped_storage().data_ptr()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = model(x)
    assert kept["y"].requires_grad
    return sum(storages.values())


def test_only_what_it_is_given_is_kept() -> None:
    torch.manual_seed(1)
    model, x = Counted(), torch.randn(64, 8)
    assert saved_bytes(model, x) > 5 * 64 * 16 * 4 / 2
    assert saved_bytes(checkpoint_wrapper(model), x) == 0


def test_disabled_or_without_gradients_it_runs_once() -> None:
    model = checkpoint_wrapper(Counted())
    x = torch.randn(4, 8)
    with torch.no_grad():
        model(x)
    assert model.runs == 1
    with disable_checkpointing():
        model(x)["y"].sum().backward()
    assert model.runs == 2
    model(x)["y"].sum().backward()
    assert model.runs == 4


@pytest.mark.parametrize("offload_to_cpu", [False, True])
def test_a_graph_that_is_kept_goes_back_more_than_once(offload_to_cpu: bool) -> None:
    torch.manual_seed(1)
    plain = Counted()
    results = []
    for model in (plain, checkpoint_wrapper(copy.deepcopy(plain), offload_to_cpu)):
        torch.manual_seed(2)
        x = torch.randn(12, 8, requires_grad=True)
        for _ in range(2):  # gradients add up
            loss = model(x)["y"].square().mean()
            loss.backward(retain_graph=True)
            (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
            loss.backward()
            results += [loss.detach(), gradient]
        results += [x.grad, *(parameter.grad for parameter in model.parameters()), *model.state_dict().values()]
        assert model.runs == (2 if model is plain else 2 + 2 * 3)
    expected, got = results[: len(results) // 2], results[len(results) // 2 :]
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=False))


def test_copies_are_modules_of_their_own() -> None:
    torch.manual_seed(1)
    model = checkpoint_wrapper(Counted(), offload_to_cpu=True)
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    for other in (copy.deepcopy(model), torch.load(stream, weights_only=False)):
        other(torch.randn(4, 8))["y"].sum().backward()
        assert cast(Any, (model.runs, other.runs)) == (0, 2)
        assert all(parameter.grad is None for parameter in model.parameters())
        assert all(parameter.grad is not None for parameter in other.parameters())


def test_nested_wrappers_and_functions() -> None:
    torch.manual_seed(1)
    inner = Counted()
    model = nn.Sequential(inner)
    x = torch.randn(4, 8, requires_grad=True)
    inner.eval()
    inner(x, factor=1.0)["y"].sum().backward()
    expected, x.grad, inner.runs = x.grad, None, 0
    checkpoint_wrapper(inner)
    checkpoint_wrapper(model)
    checkpoint(lambda x: model(x)["y"], x, offload_to_cpu=True).sum().backward()
    assert expected is not None and torch.equal(cast(torch.Tensor, x.grad), expected)
    assert inner.runs >= 2


def test_recipes_scales_and_states_are_those_of_one_run() -> None:
    def run(wrap: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(Linear(32, 64), nn.GELU(), Linear(64, 32))
        if wrap:
            checkpoint_wrapper(model)
        results = []
        for step in range(4):
            x = torch.randn(16, 32, generator=torch.Generator().manual_seed(step)) * (1 + step)
            with autocast(enabled=True, recipe=DelayedScaling(amax_history_len=4)):
                loss = model(x).square().sum()
            loss.backward()
            results.append(loss.detach())
        return results + [parameter.grad for parameter in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(run(False), run(True), strict=False))


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a torch.nn.Module, got function"):
        checkpoint_wrapper(lambda x: x)  # type: ignore[arg-type]  # no module, the mistake
