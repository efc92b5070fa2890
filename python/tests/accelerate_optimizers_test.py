"""The fused Adam and AdamW under plimsoll.accelerate(): one step against FP64, and a training run as torch's own."""

import copy
from typing import Any

import plimsoll
import pytest
import torch
from rounding import rounds_alike

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
STEPS: Any = {True: torch._fused_adamw_, False: torch._fused_adam_}  # by whether the decay is decoupled
OPTIONS: dict[str, Any] = {
    "lr": 0.03,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "weight_decay": 0.1,
    "amsgrad": False,
    "maximize": False,
}


@pytest.fixture(autouse=True)
def ours():
    with plimsoll.accelerated():
        step(operands(BF16))
        if not outcomes().get("replaced"):
            pytest.skip("no rule for this processor")
        plimsoll.reset_acceleration_report()
        yield


def outcomes():
    return {reason: calls for reason, calls in plimsoll.acceleration_report().get("fused_adam", {}).items() if calls}


def operands(dtype, shapes=((300, 257), (77,))):
    """Weights, gradients and both moments."""
    torch.manual_seed(0)
    lists = [[torch.randn(shape).to(dtype) for shape in shapes] for _ in range(4)]
    lists[3] = [x.square() for x in lists[3]]
    return lists


def step(lists, decoupled=True, number=3.0, **options):
    steps = [torch.tensor(number) for _ in lists[0]]
    STEPS[decoupled](*lists, [], steps, **{**OPTIONS, **options})
    return [x for each in (lists[0], lists[2], lists[3]) for x in each]


def theirs(function):
    plimsoll.accelerate(False)
    try:
        return function()
    finally:
        plimsoll.accelerate()


def exact_step(lists, decoupled, maximize):
    """The rule of torch.optim, in FP64."""
    results: tuple[list[torch.Tensor], ...] = ([], [], [])
    lr, beta1, beta2, decay = (OPTIONS[name] for name in ("lr", "beta1", "beta2", "weight_decay"))
    for each in zip(*lists, strict=True):
        w, g, m, v = (x.double() for x in each)
        g = -g if maximize else g
        if not decoupled:
            g = g + decay * w
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        root = (v / (1 - beta2**3)).sqrt() + OPTIONS["eps"]
        w = (w * (1 - lr * decay) if decoupled else w) - lr / (1 - beta1**3) * m / root
        for result, x in zip(results, (w, m, v), strict=True):
            result.append(x)
    return [x for result in results for x in result]


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("maximize", [True, False])
def test_a_step_is_as_near_to_the_exact_one_as_torchs(dtype, decoupled, maximize):
    lists = operands(dtype)
    exact = exact_step(lists, decoupled, maximize)
    reference = theirs(lambda: step(copy.deepcopy(lists), decoupled, maximize=maximize))
    mine = step(copy.deepcopy(lists), decoupled, maximize=maximize)
    assert outcomes() == {"replaced": 1}
    assert all(rounds_alike(*each) for each in zip(mine, reference, exact, strict=True))
    other = theirs(lambda: step(copy.deepcopy(lists), not decoupled, maximize=maximize))
    assert not all(rounds_alike(*each) for each in zip(other, reference, exact, strict=True))


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW])
def test_a_run_ends_as_near_to_the_exact_one_as_torchs(dtype, optimizer):
    steps = 20

    def run(kept):
        weights = [torch.nn.Parameter(x.to(kept)) for x in operands(dtype)[0]]
        optim = optimizer(weights, lr=0.01, weight_decay=0.1, fused=True)
        for number in range(steps):
            torch.manual_seed(number)
            for weight in weights:
                weight.grad = torch.randn(weight.shape).to(dtype).to(kept)
            optim.step()
        return [weight.detach() for weight in weights]

    exact, reference = theirs(lambda: (run(torch.float64), run(dtype)))
    mine = run(dtype)
    assert outcomes() == {"replaced": steps}
    assert all(rounds_alike(*each) for each in zip(mine, reference, exact, strict=True))


def test_a_rate_may_be_a_tensor():
    lists = operands(BF16)
    by_number, by_tensor = (step(copy.deepcopy(lists), lr=lr) for lr in (0.5, torch.tensor(0.5)))
    assert outcomes() == {"replaced": 2}
    assert all(torch.equal(*each) for each in zip(by_number, by_tensor, strict=True))


def test_what_is_not_ours_goes_where_it_went():
    def transposed():
        lists = operands(BF16)
        return step([[x.t() for x in each[:1]] for each in lists])

    def scaled():
        return step(operands(BF16), grad_scale=torch.tensor(2.0), found_inf=torch.tensor(0.0))

    def largest():
        lists = operands(BF16)
        steps = [torch.tensor(3.0) for _ in lists[0]]
        STEPS[True](*lists, [x.clone() for x in lists[3]], steps, **{**OPTIONS, "amsgrad": True})
        return lists[0]

    cases = {
        "dtype": (lambda: step(operands(FP32)), lambda: step(operands(torch.float64))),
        "strides": (transposed,),
        "shape": (scaled, largest, lambda: step(operands(BF16), number=0.0)),
        "size": (lambda: step(operands(BF16, ((5,),))), lambda: step(operands(BF16, ((5000,), (40,), (40,))))),
    }
    for reason, calls in cases.items():
        for call in calls:
            expected = theirs(call)
            plimsoll.reset_acceleration_report()
            torch.testing.assert_close(call(), expected, rtol=0, atol=0, equal_nan=True, msg=reason)
            assert outcomes() == {reason: 1}


def test_mistakes_have_torchs_own_errors():
    def short():
        lists = operands(BF16)
        return STEPS[True](*lists[:3], lists[3][:1], [], [torch.tensor(1.0)] * 2, **OPTIONS)

    with pytest.raises(RuntimeError) as reference:
        theirs(short)
    with pytest.raises(RuntimeError) as mine:
        short()
    assert str(mine.value) == str(reference.value)
