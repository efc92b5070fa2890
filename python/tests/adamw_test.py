"""torch.ops.plimsoll.adamw_ against torch.optim.AdamW."""

import pytest
import torch

STEPS = 3


def steps_of_both(count):
    torch.manual_seed(1)
    theirs = torch.randn(count)
    ours, moments = theirs.clone(), [torch.zeros(count) for _ in range(2)]
    optimizer = torch.optim.AdamW([theirs], lr=1e-2, weight_decay=0.1)
    for step in range(1, STEPS + 1):
        theirs.grad = torch.randn(count)
        optimizer.step()
        torch.ops.plimsoll.adamw_(ours, theirs.grad, *moments, step=step, lr=1e-2, weight_decay=0.1)
    return ours, theirs, moments, optimizer.state[theirs]


def test_weights_and_moments_are_those_of_torch():
    ours, theirs, moments, state = steps_of_both(1001)
    # Some ten roundings a step on each side, of terms no larger than the value and what it moves by.
    bound = 20 * STEPS * torch.finfo(torch.float32).eps
    for mine, other in ((ours, theirs), (moments[0], state["exp_avg"]), (moments[1], state["exp_avg_sq"])):
        assert torch.all((mine - other).abs() <= bound * (1 + other.abs()))


def test_other_shapes_and_dtypes_are_refused():
    weight = torch.zeros(4)
    for parameter, grad, step in ((weight.double(), weight, 1), (weight, torch.zeros(5), 1), (weight, weight, 0)):
        with pytest.raises(RuntimeError, match="adamw_: expected"):
            torch.ops.plimsoll.adamw_(parameter, grad, torch.zeros(4), torch.zeros(4), step=step, lr=1e-2)
