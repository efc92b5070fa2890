"""OffloadModel: the bits of the model itself, with two slices of it in memory."""

import copy
import errno
from pathlib import Path
from typing import Any

import plimsoll.pytorch as te
import pytest
import torch
from plimsoll.common.recipe import DelayedScaling
from plimsoll.shard import OffloadModel, offload_model
from plimsoll.shard.offload_model import split_evenly
from plimsoll.shard.offload_places import Copies, MappedFiles
from torch import nn
from torch.optim.swa_utils import AveragedModel

CPU = torch.device("cpu")


@pytest.fixture(params=["mapped", "copies"])
def place(request, monkeypatch) -> str:
    """Place that CPUs use and, with the CPU for the device, the one that other devices use."""
    if request.param == "copies":
        monkeypatch.setattr(offload_model, "place_for", lambda slices, device, home, path: Copies(slices, device, home))
    return request.param


def network(dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(1)
    layers = [
        nn.Linear(8, 32),
        nn.BatchNorm1d(32),
        nn.GELU(),
        nn.Linear(32, 32),
        nn.Dropout(dropout),
        nn.Tanh(),
        nn.Linear(32, 4),
    ]
    return nn.Sequential(*layers)


def gradient_of(leaf: torch.Tensor) -> torch.Tensor:
    assert leaf.grad is not None
    return leaf.grad


def trained(model: nn.Module, steps: int = 3, backwards: int = 1, set_to_none: bool = True) -> list[torch.Tensor]:
    torch.manual_seed(2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    results = []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        for _ in range(backwards):
            x = torch.randn(12, 8, requires_grad=True)
            loss = model(x).square().mean()
            loss.backward()
            results += [loss.detach(), x.grad]
        optimizer.step()
    gradients = [gradient_of(each).clone() for each in model.parameters()]
    return results + gradients + [each.clone() for each in model.state_dict().values()]


def expect_equal(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=False):
        assert torch.equal(a, b)


@pytest.mark.parametrize("checkpoint_activation", [False, True])
@pytest.mark.parametrize("num_slices", [1, 3, 7, 20])
def test_training_has_the_bits_of_the_model_itself(
    place: str, num_slices: int, checkpoint_activation: bool, tmp_path: Path
) -> None:
    model = network(dropout=0.2)
    expected = trained(copy.deepcopy(model))
    path = tmp_path if place == "mapped" else None
    offloaded = OffloadModel(model, CPU, num_slices=num_slices, checkpoint_activation=checkpoint_activation, offload_path=path)
    assert len(offloaded.model_slices) == min(num_slices, 7)
    expect_equal(trained(offloaded), expected)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("set_to_none", [False, True])
def test_gradients_add_up(place: str, set_to_none: bool) -> None:
    model = network()
    expected = trained(copy.deepcopy(model), backwards=3, set_to_none=set_to_none)
    expect_equal(trained(OffloadModel(model, CPU), backwards=3, set_to_none=set_to_none), expected)


def test_microbatches_have_the_gradients_of_the_whole(place: str) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4)).double()
    x, y = torch.randn(10, 8, dtype=torch.double), torch.randn(10, 4, dtype=torch.double)

    def gradients(model: nn.Module, dtype: torch.dtype = torch.double) -> list[torch.Tensor]:
        leaf = x.clone().to(dtype).requires_grad_()
        nn.functional.mse_loss(model(leaf), y.to(dtype)).backward()
        return [gradient_of(each) for each in (leaf, *model.parameters())]

    def distance(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
        return max(((a - b).norm() / b.norm()).item() for a, b in zip(ours, theirs, strict=True))

    expected = gradients(copy.deepcopy(model))
    # FP32 shows what rounding does to these gradients; double rounds 2^29 times finer, in another draw.
    narrow = distance(gradients(copy.deepcopy(model).float(), torch.float32), expected)
    got = gradients(OffloadModel(model, CPU, num_slices=2, checkpoint_activation=True, num_microbatches=3))
    assert distance(got, expected) <= 4 * narrow * 2.0**-29


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)

    def forward(self, tokens: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return tokens + 1, self.embedding(tokens) * x


class Joined(nn.Module):
    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, tokens: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": x @ self.embedding.weight.T, "tokens": tokens}


@pytest.mark.parametrize("checkpoint_activation", [False, True])
def test_lists_of_modules_tuples_and_shared_parameters(place: str, checkpoint_activation: bool) -> None:
    torch.manual_seed(1)
    first: Any = Pair()
    modules = [first, Pair(), Joined(first.embedding)]
    tokens, x = torch.randint(0, 9, (5,)), torch.randn(5, 6, requires_grad=True)

    def run(model) -> list[torch.Tensor]:
        result = model(tokens, x)
        result["logits"].logsumexp(-1).sum().backward()
        gradients: Any = [x.grad, *(module.embedding.weight.grad for module in modules[:2])]
        x.grad = first.embedding.weight.grad = modules[1].embedding.weight.grad = None
        return [result["tokens"], result["logits"].detach(), *gradients]

    expected = run(lambda tokens, x: modules[2](*modules[1](*modules[0](tokens, x))))
    expect_equal(run(OffloadModel(modules, CPU, checkpoint_activation=checkpoint_activation)), expected)


@pytest.mark.parametrize("checkpoint_activation", [False, True])
def test_scaling_states_stay_with_their_layers(place: str, checkpoint_activation: bool) -> None:
    def outcome(model: nn.Module) -> list[torch.Tensor]:
        results = []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(3):
            torch.manual_seed(step)
            optimizer.zero_grad()
            with te.fp8_autocast(fp8_recipe=DelayedScaling(amax_history_len=5)):
                loss = model(torch.randn(4, 16)).square().mean()
            loss.backward()
            optimizer.step()
            results.append(loss.detach())
        return results + [each.clone() for each in model.state_dict().values()]

    torch.manual_seed(1)
    model = nn.Sequential(te.Linear(16, 32), nn.GELU(), te.LayerNormMLP(32, 48), te.Linear(32, 16))
    expected = outcome(copy.deepcopy(model))
    expect_equal(outcome(OffloadModel(model, CPU, num_slices=2, checkpoint_activation=checkpoint_activation)), expected)


@pytest.mark.parametrize("averaged", [False, True])
def test_a_copy_is_a_model_of_its_own(place: str, averaged: bool, tmp_path: Path) -> None:
    expected = trained(network())
    original = OffloadModel(network(), CPU, offload_path=tmp_path if place == "mapped" else None)
    before = [each.clone() for each in original.parameters()]
    made = AveragedModel(original).module if averaged else copy.deepcopy(original)
    expect_equal(trained(made), expected)
    expect_equal(list(original.parameters()), before)
    expect_equal(trained(original), expected)


def test_inputs_without_gradients_and_frozen_parameters(place: str) -> None:
    model = network()
    model[3].requires_grad_(False)
    offloaded = OffloadModel(model, CPU)
    offloaded(torch.randn(6, 8)).sum().backward()
    assert model[0].weight.grad is not None and model[3].weight.grad is None
    with torch.no_grad():
        assert not offloaded(torch.randn(6, 8)).requires_grad


def file_pages() -> int:
    """Bytes of files that are in this process's memory."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssFile", "RssShmem"))


def test_two_slices_are_in_memory(tmp_path: Path) -> None:
    slices = [nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.ReLU()) for _ in range(8)]  # 4 MiB each
    model = OffloadModel(slices, CPU, checkpoint_activation=True, offload_path=tmp_path)
    most = []
    for each in slices:
        each[0].register_forward_hook(lambda *_: most.append(file_pages()))
    model(torch.randn(2, 1024)).sum().backward()  # the first time, code is read, too
    most.clear()
    before = file_pages()
    model(torch.randn(2, 1024)).sum().backward()
    slice_bytes = 4 << 20
    assert len(most) == 16
    assert max(most) - before < 3 * slice_bytes
    assert max(most) - before >= slice_bytes
    assert file_pages() - before < slice_bytes


def test_a_second_backward_is_an_error() -> None:
    loss = OffloadModel(network(), CPU)(torch.randn(4, 8)).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="expected one backward through each forward"):
        loss.backward()


def test_a_full_disk_is_an_error_and_loses_nothing(monkeypatch, tmp_path: Path) -> None:
    def full(*_) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    model = network()
    before = [each.clone() for each in model.parameters()]
    with pytest.raises(OSError, match=r"expected \d+ free bytes") as error:
        OffloadModel(model, CPU, offload_path=tmp_path)
    assert str(tmp_path) in str(error.value)
    expect_equal(list(model.parameters()), before)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"device": CPU}, TypeError, "expected a model and a device, got no model"),
        ({"model": network()}, TypeError, "expected a model and a device, got no device"),
        ({"model": nn.Linear(2, 2), "device": CPU}, TypeError, "expected a torch.nn.Sequential or a list of modules, got Linear"),
        ({"model": network(), "device": CPU, "num_microbatches": 2}, RuntimeError, "expected checkpoint_activation=True"),
        ({"model": network(), "device": CPU, "num_slices": 0}, ValueError, "expected slices and microbatches, got 0 and 1"),
        (
            {"model": network(), "device": CPU, "offload_device": "meta"},
            ValueError,
            "expected offload_device on the CPU, got meta",
        ),
        ({"model": network(), "device": CPU, "offload_path": "/nowhere"}, OSError, "/nowhere"),
    ],
)
def test_bad_arguments(arguments, error, text) -> None:
    with pytest.raises(error, match=text):
        OffloadModel(**arguments)


@pytest.mark.parametrize(
    ("sizes", "parts", "expected"),
    [
        ([1, 1, 1, 1], 2, [2, 2]),
        ([5, 1, 1, 1], 2, [1, 3]),
        ([1, 1, 1, 9], 3, [1, 2, 1]),
        ([0, 0, 3], 3, [1, 1, 1]),
        ([4, 2], 1, [2]),
    ],
)
def test_slices_are_even(sizes: list[int], parts: int, expected: list[int]) -> None:
    assert [len(part) for part in split_evenly(sizes, parts)] == expected


def test_places_are_those_of_the_devices(tmp_path: Path) -> None:
    assert isinstance(offload_model.place_for([], CPU, CPU, tmp_path), MappedFiles)
    assert isinstance(offload_model.place_for([], torch.device("meta"), CPU, None), Copies)
