"""Names of fairscale's ShardedDataParallel and OSS that their users call: each does here what it does there."""

from typing import Any

import pytest
import ranks
import shard_models as models
import torch
from plimsoll.shard import OSS, ShardedDataParallel
from torch import nn


def parallel(group, **options):
    net = nn.Sequential(nn.Linear(9, 5), nn.Linear(5, 1))
    with torch.no_grad():
        for index, parameter in enumerate(net.parameters()):
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter) / (index + 1))
    optimizer = OSS(net.parameters(), torch.optim.SGD, group, lr=0.1)
    return ShardedDataParallel(net, optimizer, group, **options), optimizer


@ranks.case(2)
def reduce_averages_what_has_added_up(group):
    rank, size = models.position(group)
    x, y = models.part(models.batch(0), rank, size)
    (manual, optimizer), (automatic, _) = parallel(group), parallel(group)
    with pytest.raises(RuntimeError, match="expected gradients that have added up .* called twice"):
        manual.reduce()
    models.backward(automatic, x, y)
    with manual.no_sync():
        models.backward(manual, x, y)
    assert all(parameter.grad is not None for parameter in manual.parameters()), "on all ranks"
    manual.reduce()
    for mine, theirs in zip(manual.parameters(), automatic.parameters(), strict=True):
        is_mine = optimizer.param_to_rank[mine] == rank
        assert (mine.grad is not None) == (theirs.grad is not None) == is_mine
        assert not is_mine or (torch.equal(mine.grad, theirs.grad) and mine.grad.any())
    with pytest.raises(RuntimeError, match="called twice"):
        manual.reduce()


@ranks.case(2)
def reduce_is_for_what_one_rank_alone_has_too(group):
    """A rank without gradients takes part; nobody waits for it in vain."""
    rank, size = models.position(group)
    x, y = models.part(models.batch(0), rank, size)
    model, optimizer = parallel(group)
    if rank == 1:
        with model.no_sync():
            models.backward(model, x, y)
    alone = {p: None if p.grad is None else p.grad.clone() for p in model.parameters()}
    model.reduce()
    theirs = ranks.gathered(group, [None if grad is None else grad / 2 for grad in alone.values()])[1]
    for parameter, half in zip(model.parameters(), theirs, strict=True):
        if optimizer.param_to_rank[parameter] == rank:
            assert torch.equal(parameter.grad, half) and half.any()


@ranks.case(1)
def reduce_inside_a_backward_pass_is_an_error(group):
    model, _ = parallel(group)
    said = []

    def tries(_):
        try:
            model.reduce()
        except RuntimeError as error:
            said.append(str(error))

    model.module[0].weight.register_hook(tries)
    model(models.batch(0)[0]).sum().backward()
    assert len(said) == 1 and "expected reduce() outside of a backward pass" in said[0]


@ranks.case(2)
def a_forward_pass_after_create_graph_is_an_error(group):
    rank, size = models.position(group)
    x, y = models.part(models.batch(0), rank, size)
    model, optimizer = parallel(group)
    nn.functional.mse_loss(model(x), y).backward(create_graph=True)
    assert all(p.grad.requires_grad for p in optimizer.optim.param_groups[0]["params"])
    with pytest.raises(RuntimeError, match="expected gradients that require no gradient themselves"):
        model(x)
    model.eval()
    model(x)
    model.train()
    model.zero_grad()
    models.backward(model, x, y)


@ranks.case(1)
def devices_of_a_module_are_known(group):
    model, _ = parallel(group)
    assert (model.is_multi_device_module, model.device_type) == (False, "cpu")
    with torch.device("meta"):
        elsewhere = nn.Linear(2, 2)
    net = nn.Sequential(nn.Linear(2, 2), elsewhere.requires_grad_(False))
    options: dict[str, Any] = {"sync_models_at_startup": False, "broadcast_buffers": False}
    model = ShardedDataParallel(net, OSS(net[0].parameters(), lr=0.1, group=group), group, **options)
    assert model.is_multi_device_module


@ranks.case(2)
def parameters_of_devices_and_ranks_can_be_asked(group):
    net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2), nn.Linear(5, 2))
    net[2].requires_grad_(False)
    optimizer = OSS(net.parameters(), torch.optim.SGD, group, lr=0.1, force_broadcast_object=True)
    cpu = torch.device("cpu")
    assert optimizer._default_device == cpu and optimizer.force_broadcast_object
    assert (optimizer.backend, optimizer.global_rank) == ("gloo", optimizer.rank)
    of_ranks = optimizer._per_device_params[cpu]
    assert list(optimizer._per_device_params) == [cpu] and len(of_ranks) == 2
    for rank, owned in enumerate(of_ranks):
        assert {id(p) for p in owned} == {id(p) for p, owner in optimizer.param_to_rank.items() if owner == rank}
        assert [p.numel() for p in owned] == sorted(p.numel() for p in owned)
        bucket = optimizer.buckets[cpu][rank]
        trained = [p for p in owned if p.requires_grad]
        assert [id(p) for p in bucket.params] == [id(p) for p in trained]
        assert torch.equal(bucket.buffer, torch.cat([p.detach().view(-1) for p in trained]))
    assert sum(bucket.buffer.numel() for bucket in optimizer.buckets[cpu].values()) == 20 + 12


@ranks.case(2)
def a_rank_without_trained_parameters_has_no_bucket(group):
    optimizer = OSS(nn.Linear(3, 1, bias=False).parameters(), torch.optim.SGD, group, lr=0.1)
    assert list(optimizer.buckets[torch.device("cpu")]) == [0]
    assert [len(owned) for owned in optimizer._per_device_params[torch.device("cpu")]] == [1, 0]


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
