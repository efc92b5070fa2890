"""AutomaticLossScaler, and what GradScaler's reports say of flushed gradients."""

import math

import pytest
import torch
from plimsoll.amp import AutomaticLossScaler, GradScaler
from rounding import approx


class Step:
    """One parameter whose gradient is what the test says."""

    def __init__(self, scaler, make_optimizer=torch.optim.SGD):
        self.scaler = scaler
        self.parameter = torch.nn.Parameter(torch.ones(4))
        self.optimizer = make_optimizer([self.parameter], lr=0.0)

    def __call__(self, *gradient):
        self.optimizer.zero_grad()
        self.scaler.scale((self.parameter * torch.tensor(gradient)).sum()).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.scaler.get_scale()


def test_it_grows_until_nothing_is_flushed_and_gives_way_at_once():
    step = Step(AutomaticLossScaler("cpu", init_scale=1.0, growth_interval=2))
    tiny = (2.0**-20, 1.0, 1.0, 1.0)
    assert step(*tiny) == 1
    assert step.scaler.last_report(step.optimizer).flushed_share == 0.25
    assert step(*tiny) == 64  # 2^-20 becomes 2^-14, fp16's smallest normal
    assert [step(*tiny) for _ in range(3)] == [64] * 3
    assert step.scaler.last_report(step.optimizer).flushed_share == 0
    assert step(1000.0, 0.0, 0.0, 0.0) == 8  # 65504 / 8 / 1000
    assert step(math.inf, 0.0, 0.0, 0.0) == 4


def test_bounds_hold_and_the_state_is_torchs():
    scaler = AutomaticLossScaler("cpu", init_scale=16.0, growth_interval=1, max_scale=32.0, min_scale=8.0)
    step = Step(scaler)
    assert step(*[2.0**-40] * 4) == 32
    assert step(*[1e4] * 4) == 8
    other = GradScaler("cpu")
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    disabled = Step(AutomaticLossScaler("cpu", enabled=False))
    assert disabled(1.0, 1.0, 1.0, 1.0) == 1


def test_two_optimizers_count_together():
    scaler = AutomaticLossScaler("cpu", init_scale=1.0, growth_interval=1, flushed_share=0.2)
    parameters = [torch.nn.Parameter(torch.ones(4)) for _ in range(2)]
    optimizers = [torch.optim.SGD([parameter], lr=0.0) for parameter in parameters]
    # An eighth of all is flushed, a quarter of the first one's.
    gradient = torch.tensor([2.0**-20, 1, 1, 1])
    scaler.scale((parameters[0] * gradient).sum() + parameters[1].sum()).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 1


def fused_adamw(parameters, lr):
    return torch.optim.AdamW(parameters, lr=lr, fused=True)


@pytest.mark.parametrize("make_optimizer", [torch.optim.SGD, fused_adamw])
def test_the_report_is_of_gradients_without_the_scale(make_optimizer):
    step = Step(GradScaler("cpu", init_scale=1024.0), make_optimizer)
    step(3.0, 4.0, 0.0, 2.0**-30)
    report = step.scaler.last_report(step.optimizer)
    assert report.grad_norm == 5
    assert report.flushed_share == approx(1 / 3, 1)  # 2^-30 * 2^10 is subnormal; zeros do not count
