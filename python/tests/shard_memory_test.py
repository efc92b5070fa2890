"""Memory of plimsoll.shard.FullyShardedDataParallel: parameters come and go, shards may be empty or wait on disk."""

import copy
import pathlib
import tempfile

import pytest
import ranks
import shard_models as models
import torch
from plimsoll.shard import FullyShardedDataParallel as Fsdp
from plimsoll.shard import offload_optimizer
from rounding import approx
from torch import nn


@ranks.case(2)
def memory_comes_and_goes(group):
    model = models.wrapped(models.blocks_net(), group)
    inner = model.blocks[0].module[0]
    first = [f"_fsdp_wrapped_module.flat_param_{index}" for index in range(2)]
    assert [name for name, _ in model.named_parameters()][:2] == first
    assert inner.weight.numel() == 0
    seen = []
    inner.register_forward_hook(lambda *_: seen.append(inner.weight.untyped_storage().nbytes()))
    out = model(models.batch(0)[0])
    assert seen == [4 * (17 * 17 + 17)]
    assert inner.weight.numel() == 0
    assert model.module.first.weight.untyped_storage().nbytes() > 0, "the root's stay until backward"
    out.sum().backward()
    assert model.module.first.weight.numel() == 0
    assert inner.weight.grad is None
    frozen = model.flat_param_1
    assert not frozen.requires_grad and frozen.grad is None
    with pytest.raises(RuntimeError, match="must be a matrix"):
        inner(torch.ones(1, 17))
    with torch.no_grad():
        model(models.batch(0)[0])
    assert model.module.first.weight.numel() == 0


@ranks.case(3)
def shards_may_be_empty(group):
    rank, size = models.position(group)
    layer = nn.Linear(1, 1)  # two numbers on three ranks
    with torch.no_grad():
        layer.weight.fill_(2)
        layer.bias.fill_(0)
    model = Fsdp(layer, group)
    assert model.flat_param_0.numel() == (1 if rank < 2 else 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    model(torch.full((1, 1), float(3 * rank))).sum().backward()
    assert [g.tolist() for g in ranks.gathered(group, model.flat_param_0.grad)] == [[3.0], [1.0], []]
    assert model.clip_grad_norm_(1e9).item() == approx(10**0.5, 4)  # roots and squares on the way
    assert model.clip_grad_norm_(1e9, float("inf")).item() == 3
    optimizer.step()
    # Adam's first step is lr * g / (|g| + 1e-8), in some eight roundings.
    assert models.full_weights(model)["weight"].item() == approx(2 - 0.5 * 3 / (3 + 1e-8), 8)


def pages_in_memory(folder):
    """Kilobytes of this process's memory that files of the folder hold, and of how many files."""
    resident = {}
    name = ""
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            name = line
        elif line.startswith("Rss:") and str(folder) in name:
            resident[name] = int(line.split()[1])
    return sum(resident.values()), len(resident)


@ranks.case(2)
def shards_and_states_wait_on_disk(group):
    with tempfile.TemporaryDirectory() as folder:
        models_of = [nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 300)) for _ in range(2)]
        models_of[1].load_state_dict(models_of[0].state_dict())
        sharded = [Fsdp(each, group, offload_path=path) for each, path in zip(models_of, (None, folder), strict=False)]
        optimizers = [torch.optim.AdamW(each.parameters(), lr=0.1) for each in sharded]
        offload_optimizer(optimizers[1], folder)
        for step in range(3):
            for model, optimizer in zip(sharded, optimizers, strict=False):
                optimizer.zero_grad()
                torch.manual_seed(step)
                model(torch.randn(4, 300)).square().sum().backward()
                optimizer.step()
        resident, files = pages_in_memory(folder)
        assert files == 4, "master, gradient, two moments"
        # The step has read the masters and the gradients again, the states have left.
        assert resident <= 2 * 4 * 300 * 301 / 1024 + 64
        a, b = (model.state_dict() for model in sharded)
        assert all(torch.equal(a[name], b[name]) for name in a)
        optimizers[1].load_state_dict(copy.deepcopy(optimizers[1].state_dict()))
        optimizers[1].step()
        assert pages_in_memory(folder)[1] == 4, "those of the states before have gone"


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
