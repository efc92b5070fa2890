"""OSS, ShardedDataParallel and ShardedGradScaler on several ranks, against torch's optimizers and DDP's averages."""

import copy
import logging
import math
import warnings
from contextlib import contextmanager
from typing import Any

import plimsoll.shard
import pytest
import ranks
import torch
import torch.distributed as dist
from plimsoll.amp import AutomaticLossScaler
from plimsoll.shard import OSS, ShardedAutomaticLossScaler, ShardedDataParallel, ShardedGradScaler
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
def a_scale_that_is_lost_skips_steps_on_all_ranks(group):
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer: Any = OSS(parameters, torch.optim.SGD, group=group, lr=1.0)
    scaler: Any = ShardedGradScaler(process_group=group)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in range(180):
            scaler.scale(torch.ones(()))
            for parameter in parameters:
                bad = step < 150 and dist.get_rank(group) == 1
                parameter.grad = torch.full((3,), float("nan") if bad else scaler.get_scale())
            scaler.step(optimizer)
            scaler.update()
            assert scaler.last_report(optimizer).skipped
    assert len(said) == 1 and scaler.get_scale() == 0
    assert all(torch.equal(parameter.detach(), torch.ones(3)) for parameter in parameters)


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


@ranks.case(3)
def inf_on_one_rank_alone_makes_all_skip(group):
    rank = dist.get_rank(group)
    mine = nn.Parameter(torch.ones(4))  # another part on each rank
    optimizer = torch.optim.SGD([mine], lr=0.5)
    scaler = ShardedGradScaler(init_scale=1024.0, growth_interval=2, process_group=group)

    def step(grad):
        scaler.scale(torch.ones(()))
        mine.grad = torch.full((4,), grad * scaler.get_scale())
        scaler.step(optimizer, max_norm=1.0)
        scaler.update()
        return scaler.last_report(optimizer)

    for bad in (float("inf"), float("nan")):
        before = scaler.get_scale()
        report = step(bad if rank == 1 else 1.0)
        assert report.skipped and torch.equal(mine.detach(), torch.ones(4))
        assert scaler.get_scale() == before / 2
    report = step(1.0)
    assert report.grad_norm == approx(12**0.5, 2, torch.float64) and report.clip_factor == approx(
        1 / (12**0.5 + 1e-6), 4, torch.float64
    )
    assert mine.tolist() == approx([1 - 0.5 / (12**0.5 + 1e-6)] * 4, 4)  # factor, clipped gradient, product, difference
    step(1.0)
    assert ranks.gathered(group, scaler.get_scale()) == [512.0] * 3
    assert len({str(state) for state in ranks.gathered(group, scaler.state_dict())}) == 1


@ranks.case(2)
def the_automatic_scale_is_that_of_all_gradients(group):
    """One rank's gradients would be flushed, the other's would overflow first: the scale is that of one process with both."""
    rank = dist.get_rank(group)
    options: dict[str, Any] = dict(init_scale=1.0, growth_interval=2)
    whole, part = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(4))
    alone, over_ranks = AutomaticLossScaler("cpu", **options), ShardedAutomaticLossScaler(process_group=group, **options)
    optimizers = [torch.optim.SGD([parameter], lr=0.0) for parameter in (whole, part)]
    scales = []
    for gradients in [[2.0**-20] * 4 + [1.0] * 4] * 2 + [[2.0**-20] * 4 + [1000.0, 0.0, 0.0, 0.0]] + [[math.inf] + [1.0] * 7]:
        whole.grad, part.grad = (torch.tensor(each) for each in (gradients, gradients[4 * rank : 4 * rank + 4]))
        for scaler, parameter, optimizer in zip((alone, over_ranks), (whole, part), optimizers, strict=True):
            parameter.grad *= scaler.scale(torch.ones(()))
            scaler.step(optimizer)
            scaler.update()
        assert over_ranks.state_dict() == alone.state_dict()
        here, want = over_ranks.last_report(optimizers[1]), alone.last_report(optimizers[0])
        assert here is not None and want is not None and here.flushed_share == want.flushed_share
        scales.append(over_ranks.get_scale())
    assert scales == [1, 64, 8, 4]
    assert ranks.gathered(group, scales) == [scales] * 2


@ranks.case(2)
def a_scale_for_each_optimizer_and_a_hysteresis_are_alike_on_all_ranks(group):
    parameters: list[Any] = [nn.Parameter(torch.ones(4)) for _ in range(2)]
    optimizers = [torch.optim.SGD([parameter], lr=0.5) for parameter in parameters]
    for make in (ShardedGradScaler, ShardedAutomaticLossScaler):
        scaler = make(init_scale=16.0, process_group=group, hysteresis=2, optimizers=optimizers)
        for scale in (16.0, 8.0):
            for optimizer, parameter in zip(optimizers, parameters, strict=True):
                optimizer.zero_grad()
                scaler.scale(parameter.sum(), optimizer).backward()
                if dist.get_rank(group) == 1 and optimizer is optimizers[0]:
                    parameter.grad[2] = math.inf
                scaler.step(optimizer)
            scaler.update()
            assert ranks.gathered(group, [scaler.get_scale(each) for each in optimizers]) == [[scale, 16.0]] * 2
    assert torch.equal(parameters[0].detach(), torch.ones(4)) and torch.equal(parameters[1].detach(), torch.full((4,), -1.0))


@ranks.case(2)
def the_scaler_goes_with_sharded_optimizers(group):
    torch.manual_seed(3)
    model = nn.Linear(3, 2)
    optimizer = OSS(model.parameters(), torch.optim.Adam, group=group, lr=0.1)
    sharded = ShardedDataParallel(model, optimizer, group)
    scaler = ShardedGradScaler(process_group=group)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for finite in (False, True):
        optimizer.zero_grad()
        x = torch.ones(1, 3)
        if not finite and dist.get_rank(group) == 1:
            x[0, 0] = float("inf")
        scaler.scale(sharded(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        changed = [not torch.equal(parameter, before[name]) for name, parameter in model.named_parameters()]
        assert changed == [finite, finite]
        ranks.assert_same_bits(group, dict(model.named_parameters()))


@ranks.case(2)
def ranks_out_of_step_are_an_error_on_all(group):
    mine = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([mine], lr=0.5)
    scaler = ShardedGradScaler(process_group=group)
    scaler._calls = dist.get_rank(group)
    scaler.scale(torch.ones(()))
    mine.grad = torch.ones(1)
    with pytest.raises(RuntimeError, match="as often on each rank"):
        scaler.step(optimizer)


def test_without_a_process_group_the_error_says_what_is_missing():
    for make in (lambda: OSS([nn.Parameter(torch.ones(1))]), lambda: ShardedGradScaler()):
        with pytest.raises(RuntimeError, match="init_process_group"):
            make()


def test_names_are_fairscales():
    assert {"OSS", "ShardedDataParallel", "ShardedGradScaler"} <= set(plimsoll.shard.__all__)


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
