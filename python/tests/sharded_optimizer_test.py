"""OSS and ShardedDataParallel on several ranks, against torch's optimizers and DDP's averages."""

import copy
import logging
from contextlib import contextmanager
from typing import Any

import plimsoll.shard
import pytest
import ranks
import torch
import torch.distributed as dist
from plimsoll.optim import AdamW
from plimsoll.shard import OSS, ShardedDataParallel, ShardedGradScaler
from rounding import approx
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 4


def model_of():
    torch.manual_seed(1)
    # One parameter is large enough to travel by itself; the last layer is not used.
    return nn.Sequential(nn.Linear(9, 8000), nn.Tanh(), nn.Linear(8000, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))


class Used(nn.Module):
    """All of the layers but the last."""

    def __init__(self):
        super().__init__()
        self.layers = model_of()

    def forward(self, x):
        return self.layers[:-1](x)


def backward(module, step, rank):
    torch.manual_seed(100 * step + rank)
    x, y = torch.randn(4, 9), torch.randn(4, 3)
    loss = nn.functional.mse_loss(module(x), y)
    loss.backward()
    return loss


def train_sharded(group, optim, reference, **arguments):
    """Both have the same bits: sums of two ranks have one order."""
    rank = dist.get_rank(group)
    theirs, ours = Used(), Used()
    ddp = DistributedDataParallel(theirs, process_group=group, find_unused_parameters=True)
    their_optimizer = reference(theirs.parameters(), **arguments)
    optimizer = OSS(ours.parameters(), optim, group=group, **arguments)
    sharded = ShardedDataParallel(ours, optimizer, group)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    their_schedule = torch.optim.lr_scheduler.StepLR(their_optimizer, 2)
    for step in range(STEPS):
        optimizer.zero_grad()
        their_optimizer.zero_grad()
        with sharded.no_sync(), ddp.no_sync():
            backward(sharded, 50 + step, rank)
            backward(ddp, 50 + step, rank)
        backward(sharded, step, rank)
        backward(ddp, step, rank)
        for name, parameter in ours.named_parameters():
            used = not name.startswith("layers.4")
            assert (parameter.grad is not None) == (used and optimizer.param_to_rank[parameter] == rank), name
        optimizer.step()
        their_optimizer.step()
        schedule.step()
        their_schedule.step()
    for (name, parameter), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(parameter, other), name
    return optimizer, their_optimizer


@ranks.case(2)
def adam_has_the_bits_of_data_parallel(group):
    optimizer, reference = train_sharded(group, torch.optim.AdamW, torch.optim.AdamW, lr=1e-2)
    whole, theirs = optimizer.state_dict(all_ranks=True), reference.state_dict()
    assert whole["state"].keys() == theirs["state"].keys()
    for number, values in theirs["state"].items():
        for name, value in values.items():
            assert torch.equal(whole["state"][number][name], value), (number, name)
    assert [g["params"] for g in whole["param_groups"]] == [g["params"] for g in theirs["param_groups"]]
    reference.load_state_dict(whole)  # of the optimizer that is not sharded
    held = sum(value.numel() for values in optimizer.optim.state.values() for value in values.values())
    everything = sum(value.numel() for values in theirs["state"].values() for value in values.values())
    assert held < everything


@ranks.case(3)
def a_state_of_three_ranks_goes_on_at_two(group):
    def step(optimizer, parameters, seed):
        torch.manual_seed(seed)
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()

    rank = dist.get_rank(group)
    start = [torch.arange(float(n)) for n in (4, 5, 2, 6, 4)]
    three = [nn.Parameter(values.clone()) for values in start]
    optimizer = OSS(three, torch.optim.AdamW, group=group, lr=0.1)
    step(optimizer, three, 1)
    state = copy.deepcopy(optimizer.state_dict(all_ranks=True))
    pair = dist.new_group([0, 1])
    two = [nn.Parameter(parameter.detach().clone()) for parameter in three]
    if rank < 2:
        resumed = OSS(two, torch.optim.AdamW, group=pair, lr=0.1)
        resumed.load_state_dict(state)
        step(resumed, two, 2)
    step(optimizer, three, 2)
    for ours, theirs in zip(two, three, strict=True):
        assert rank == 2 or torch.equal(ours, theirs)


@ranks.case(3)
def groups_that_are_added_keep_the_balance(group):
    sizes = (4, 5, 2, 6, 4)
    optimizer = OSS([nn.Parameter(torch.zeros(n)) for n in sizes], torch.optim.SGD, group=group, lr=0.1)
    mine = lambda: sum(p.numel() for g in optimizer.optim.param_groups for p in g["params"])
    assert ranks.gathered(group, mine()) == [8, 5, 8]
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3, 1))], "lr": 0.5})
    assert ranks.gathered(group, mine()) == [8, 8, 8]
    assert [g["lr"] for g in optimizer.param_groups] == [g["lr"] for g in optimizer.optim.param_groups] == [0.1, 0.5]
    assert [len(groups) for groups in optimizer.partition_parameters()] == [2, 2, 2]


@ranks.case(2)
def groups_that_are_added_have_all_options_at_once(group):
    mine = lambda *sizes: [nn.Parameter(torch.ones(n)) for n in sizes]
    for optim, options in (
        (torch.optim.AdamW, {"lr": 0.1, "betas": (0.5, 0.9)}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.5}),
    ):
        optimizer, plain = OSS(mine(4, 5), optim, group=group, **options), optim(mine(4, 5), **options)
        for each in (optimizer, plain):
            each.param_groups[0]["lr"] = 0.3  # as a scheduler does
            each.add_param_group({"params": mine(3, 2), "weight_decay": 0.25})
        without = lambda one: [{k: v for k, v in g.items() if k != "params"} for g in one.param_groups]
        assert without(optimizer) == without(plain)
        assert optimizer.defaults == plain.defaults
        schedules = [torch.optim.lr_scheduler.OneCycleLR(each, 1.0, total_steps=9) for each in (optimizer, plain)]
        for each, schedule in zip((optimizer, plain), schedules, strict=True):
            for parameter in (p for g in each.param_groups for p in g["params"]):
                parameter.grad = torch.ones_like(parameter)
            each.step()
            schedule.step()
        assert without(optimizer) == without(plain)
        for ours, theirs in zip(optimizer.param_groups, plain.param_groups, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours["params"], theirs["params"], strict=True))


@ranks.case(2)
def arguments_of_fairscale_are_not_the_inner_optimizers(group):
    parameters = [nn.Parameter(torch.ones(2))]
    with _logged() as lines:
        optimizer = OSS(parameters, torch.optim.SGD, group, 2**20, False, True, lr=0.5)
    assert lines == ["OSS: broadcast_buffer_size has no effect"]
    with _logged() as lines:
        named = OSS(parameters, torch.optim.SGD, group=group, broadcast_buffer_size=-1, broadcast_fp16=True, lr=0.5)
    assert not lines and named.broadcast_fp16 and not optimizer.broadcast_fp16
    optimizer.refresh_trainable()
    parameters[0].grad = torch.ones(2)
    optimizer.step()
    assert parameters[0].tolist() == [0.5, 0.5]


class Failing(torch.optim.SGD):
    fails = False

    def step(self, closure=None):
        result = super().step(closure)
        if self.fails:
            raise RuntimeError("broken off")
        return result


@ranks.case(2)
def a_step_that_an_exception_ended_is_made_up_for_by_the_next(group):
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(4)]
    optimizer: Any = OSS(parameters, Failing, group=group, lr=0.5)
    for fails in (True, False):
        optimizer.optim.fails = fails
        for parameter in parameters:
            parameter.grad = torch.ones(3)
        try:
            optimizer.step()
        except RuntimeError as error:
            assert fails and "broken off" in str(error)
        else:
            assert not fails
    # Each owner has stepped twice, and all have what it came to.
    assert all(torch.equal(parameter.detach(), torch.zeros(3)) for parameter in parameters)


@ranks.case(2)
def the_norm_of_sparse_gradients_is_that_of_their_sums(group):
    parameters = [nn.Parameter(torch.ones(6, 1)) for _ in range(2)]
    optimizer = OSS(parameters, torch.optim.SGD, group=group, lr=1.0)
    scaler = ShardedGradScaler(init_scale=2.0**126, process_group=group)

    def set_gradients(value):
        for parameter in parameters:
            owned = optimizer.param_to_rank[parameter] == dist.get_rank(group)
            values = torch.full((3, 1), value)
            parameter.grad = torch.sparse_coo_tensor(torch.tensor([[4, 1, 4]]), values, (6, 1)) if owned else None

    set_gradients(2.0)
    assert optimizer.clip_grad_norm(1.0).item() == approx(40**0.5, 2)
    set_gradients(2.0**127)  # whose sums with the scale on them are Inf
    scaler.scale(torch.ones(()))
    scaler.step(optimizer, max_norm=1.0)
    scaler.update()
    report: Any = scaler.last_report(optimizer)
    assert not report.skipped and report.grad_norm == approx(40**0.5, 2, torch.float64)
    for parameter in parameters:
        assert parameter[4].item() == approx(1 - 4 / (40**0.5 + 1e-6), 4)


@ranks.case(2)
def codes_of_moments_are_saved_under_their_own_names(group):
    def made():
        own = [nn.Parameter(torch.ones(n)) for n in (64, 32, 96)]
        groups = [{"params": own[:1]}, {"params": own[1:], "lr": 0.5}]
        return own, groups

    def step(own, optimizer):
        for number, parameter in enumerate(own):
            parameter.grad = torch.linspace(1, number + 2, len(parameter))
        optimizer.step()

    own, groups = made()
    optimizer = OSS(groups, AdamW, group=group, lr=0.1, optimizer_state="8bit")
    whole, whole_groups = made()
    reference = AdamW(whole_groups, lr=0.1, optimizer_state="8bit")
    step(own, optimizer)
    step(whole, reference)
    saved = optimizer.state_dict(all_ranks=True)
    expected = reference.state_dict()["state"]
    assert {number: set(state) for number, state in saved["state"].items()} == {n: set(s) for n, s in expected.items()}
    assert saved["state"][2]["exp_avg_codes"].shape == (96,)
    theirs, their_groups = made()
    torchs = torch.optim.AdamW(their_groups, lr=0.1)
    torchs.load_state_dict(saved)
    with pytest.raises(KeyError, match="exp_avg"):
        step(theirs, torchs)
    again, again_groups = made()
    resumed = OSS(again_groups, AdamW, group=group, lr=0.1, optimizer_state="8bit")
    resumed.load_state_dict(saved)
    mine = [p for p in own if optimizer.param_to_rank[p] == dist.get_rank(group)]
    theirs = [p for p in again if resumed.param_to_rank[p] == dist.get_rank(group)]
    for one, other in zip(mine, theirs, strict=True):
        assert all(torch.equal(value, resumed.optim.state[other][name]) for name, value in optimizer.optim.state[one].items())


class Counting(torch.optim.SGD):
    """An optimizer that writes into its groups and whose step() takes more."""

    def step(self, closure=None, *, more=0):
        self.param_groups[0]["count"] = self.param_groups[0].get("count", 0) + more
        return super().step(closure)


@ranks.case(2)
def the_inner_optimizer_gets_what_step_is_given(group):
    parameter = nn.Parameter(torch.ones(2))
    optimizer = OSS([parameter], Counting, group=group, lr=0.5)

    def closure():
        parameter.grad = torch.ones(2)
        return 7.0

    assert optimizer.step(closure, more=3) == 7.0
    assert optimizer.param_groups[0]["count"] == 3
    assert torch.equal(parameter.detach(), torch.full((2,), 0.5))
    if dist.get_rank(group) == 1:
        with pytest.raises(RuntimeError, match="has not been consolidated on this rank"):
            optimizer.state_dict()
    optimizer.consolidate_state_dict(recipient_rank=0)
    if dist.get_rank(group) == 0:
        assert optimizer.state_dict()["param_groups"][0]["count"] == 3


@ranks.case(2)
def the_norm_that_clips_is_that_of_all_gradients(group):
    parameters = [nn.Parameter(torch.ones(n)) for n in (3, 5)]
    optimizer = OSS(parameters, torch.optim.SGD, group=group, lr=1.0)
    for parameter in parameters:
        mine = optimizer.param_to_rank[parameter] == dist.get_rank(group)
        parameter.grad = torch.full_like(parameter, 2.0) if mine else None
    assert optimizer.clip_grad_norm(1.0).item() == approx(32**0.5, 2)
    optimizer.step()
    for parameter in parameters:
        assert parameter.tolist() == approx([1 - 2 / (32**0.5 + 1e-6)] * len(parameter), 4)


@ranks.case(2)
def narrow_gradients_are_summed_in_fp32(group):
    linear: Any = nn.Linear(2, 1, bias=False).bfloat16()
    optimizer = OSS(linear.parameters(), torch.optim.SGD, group=group, lr=1.0)
    sharded = ShardedDataParallel(linear, optimizer, group)
    x = torch.tensor([[1.0, 256.0] if dist.get_rank(group) else [1.0, 1.0]], dtype=torch.bfloat16)
    sharded(x).sum().backward()
    if dist.get_rank(group) == optimizer.param_to_rank[linear.weight]:
        assert linear.weight.grad.dtype == torch.bfloat16
        assert torch.equal(linear.weight.grad, torch.tensor([[1.0, 128.5]]).bfloat16())


@ranks.case(2)
def parameters_that_freeze_are_noticed(group):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizers = [OSS(layer.parameters(), torch.optim.SGD, group=group, lr=1.0) for layer in model]
    sharded = ShardedDataParallel(model, optimizers, group, reduce_buffer_size=0, reduce_fp16=True)
    assert sharded.reduce_fp16
    model[0].requires_grad_(False)
    with _logged() as lines:
        sharded(torch.ones(1, 2)).sum().backward()
    assert any("have changed" in line for line in lines)
    assert all(parameter.grad is None for parameter in model[0].parameters())
    got = [parameter.grad is not None for parameter in model[1].parameters()]
    assert sum(sum(each) for each in ranks.gathered(group, got)) == 2, "each gradient is on one rank"
    with _logged() as lines:
        assert not ShardedDataParallel(model, optimizers, group, reduce_fp16=True).reduce_fp16
    assert any("reduce_fp16 is off" in line for line in lines)
    with pytest.raises(RuntimeError, match="in an optimizer"):
        ShardedDataParallel(model, optimizers[:1], group)
    assert sharded.append == model.append, "what the wrapper lacks is the module's"


@contextmanager
def _logged():
    lines = []
    handler = logging.Handler()
    vars(handler)["emit"] = lambda record: lines.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger().removeHandler(handler)


def test_without_a_process_group_the_error_says_what_is_missing():
    for make in (lambda: OSS([nn.Parameter(torch.ones(1))]), lambda: ShardedGradScaler()):
        with pytest.raises(RuntimeError, match="init_process_group"):
            make()


def test_names_are_fairscales():
    assert {"OSS", "ShardedDataParallel", "ShardedGradScaler"} <= set(plimsoll.shard.__all__)


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
