"""ShardedGradScaler and ShardedAutomaticLossScaler on several ranks: one decision, and one scale, on all of them."""

import math
import warnings
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from plimsoll.amp import AutomaticLossScaler
from plimsoll.shard import OSS, ShardedAutomaticLossScaler, ShardedDataParallel, ShardedGradScaler
from rounding import approx
from torch import nn


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


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)
