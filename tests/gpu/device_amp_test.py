"""Unscaling, clipping and loss scales on a card: the CPU's bits, and how often the host waits."""

import math

import pytest
import torch
from host_waits import waits
from plimsoll.amp import AutomaticLossScaler, GradScaler

ops = torch.ops.plimsoll
WIDE = (torch.float32, torch.bfloat16, torch.float16)
INF, NAN = math.inf, math.nan


def gradients():
    """Many small ones and some large, of each dtype; dense in another order, with gaps, unaligned, empty, a scalar."""
    small = [torch.randn(1 + number % 777).to(WIDE[number % 3]) for number in range(600)]
    large = [torch.randn(1_500_001).to(dtype) for dtype in WIDE]
    odd = [
        torch.randn(33, 17).t(),
        torch.randn(20, 30)[:, 3:25],
        torch.randn(5000).bfloat16()[1:],
        torch.randn(0, 4),
        torch.randn(()),
    ]
    return small + large + odd


def bits(x):
    """Numbers whose equality is that of bits, but that any NaN is any other."""
    x = torch.where(x.isnan(), torch.full_like(x, NAN), x).contiguous()
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def moved(tensors):
    """Copies on the card with the strides and the offsets that they have on the CPU."""
    copies = []
    for x in tensors:
        whole = torch.empty(x.untyped_storage().nbytes() // x.element_size(), dtype=x.dtype, device="cuda")
        copies.append(whole.as_strided(x.size(), x.stride(), x.storage_offset()).copy_(x))
    return copies


def same(a, b):
    return a == b or (math.isnan(a) and math.isnan(b))


def expect_same(grads, inv_scale, **options):
    """Unscales on the CPU and on the card. Returns what the card gave."""
    on_card = moved(grads)
    got = ops.unscale_gradients_(on_card, inv_scale, **options)
    expected = ops.unscale_gradients_(grads, inv_scale, **options)
    assert all(map(same, got[:5], expected[:5])), (got[:5], expected[:5])
    assert torch.equal(got[5], expected[5]), "histogram"
    for place, (mine, theirs) in enumerate(zip(on_card, grads, strict=True)):
        assert torch.equal(bits(mine.cpu()), bits(theirs)), place
    return got


@pytest.mark.parametrize("inv_scale", (1.0, 0.3, 2.0**-16, 2.0**100, INF))
def test_unscaling_has_the_bits_of_the_cpu(inv_scale):
    expect_same(gradients(), inv_scale)


@pytest.mark.parametrize("expect_clip", (False, True))
@pytest.mark.parametrize("max_norm", (1.0, 1e9))
def test_clipping_has_the_bits_of_the_cpu(max_norm, expect_clip):
    _, clip, *_ = expect_same(gradients(), 0.25, max_norm=max_norm, expect_clip=expect_clip)
    assert (clip < 1) == (max_norm == 1.0)


@pytest.mark.parametrize("worst", (INF, -INF, NAN, 3e38))
def test_what_is_not_finite_is_found(worst):
    for place in (0, 1, 299, 600, 602):
        for index in (0, -1):
            grads = gradients()
            grads[place].view(-1)[index] = worst
            count, first = expect_same(grads, 2.0, max_norm=1.0)[2:4]
            assert (count, first) == (1, place)


def test_sparse_and_fp64_gradients_go_with_the_others():
    indices = torch.tensor([[3, 1, 3]])

    def grads(device):
        sparse = torch.sparse_coo_tensor(indices, torch.tensor([2.0, -6.0, 4.0]), (6,))
        return [x.to(device) for x in (torch.full((5,), 3.0), sparse, torch.full((7,), 2.0, dtype=torch.float64))]

    mine, theirs = grads("cuda"), grads("cpu")
    got, expected = (ops.unscale_gradients_(each, 0.5, max_norm=1.0) for each in (mine, theirs))
    # Sums of small integers are exact in any order.
    assert got[:5] == expected[:5] and torch.equal(got[5], expected[5])
    assert torch.equal(mine[1]._values().cpu(), theirs[1]._values())
    assert all(torch.equal(mine[place].cpu(), theirs[place]) for place in (0, 2))


def test_gradients_of_both_devices_are_measured_together():
    grads = [torch.full((100,), 3.0), torch.full((50,), 4.0, device="cuda"), torch.full((10,), 5.0)]
    norm, _, count, first, _, histogram = ops.unscale_gradients_(grads, 1.0)
    assert (norm, count, first, histogram.sum()) == (math.sqrt(900 + 800 + 250), 0, -1, 160)
    grads[1][7], grads[2][0] = NAN, INF
    assert ops.unscale_gradients_(grads, 1.0)[2:4] == (2, 1)


class Run:
    """A scaler over parameters whose gradients are given."""

    def __init__(self, scaler, device, make_optimizer):
        self.parameters = [torch.nn.Parameter(torch.zeros(n, device=device)) for n in (3000, 17, 5)]
        self.scaler, self.optimizer = scaler, make_optimizer(self.parameters)

    def step(self, grads, max_norm):
        scale = self.scaler.get_scale()
        self.scaler.scale(torch.zeros((), device=self.parameters[0].device))
        for parameter, grad in zip(self.parameters, grads, strict=True):
            parameter.grad = (grad * scale).to(parameter.device)
        before = [p.detach().clone() for p in self.parameters]
        self.scaler.step(self.optimizer, max_norm=max_norm)
        self.scaler.update()
        return any(not torch.equal(a, b) for a, b in zip(before, self.parameters, strict=True))


@pytest.mark.parametrize("fused", (False, True))
@pytest.mark.parametrize("kind", (GradScaler, AutomaticLossScaler))
def test_a_scaler_takes_the_steps_of_the_cpu(kind, fused):
    make = lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=fused)
    card, cpu = (Run(kind(device, growth_interval=3), device, make) for device in ("cuda", "cpu"))
    skipped = 0
    for number in range(40):
        grads = [torch.randn(n) * 2.0 ** -(number % 7) for n in (3000, 17, 5)]
        if number % 5 == 4:
            grads[number % 3][-1] = (INF, NAN)[number % 2]
        max_norm = (None, 0.5)[number // 10 % 2]
        assert card.step(grads, max_norm) == cpu.step(grads, max_norm) == (number % 5 != 4)
        report = card.scaler.last_report(card.optimizer)
        assert str(report) == str(cpu.scaler.last_report(cpu.optimizer))
        skipped += report.skipped
        assert card.scaler.state_dict() == cpu.scaler.state_dict()
        for mine, theirs in zip(card.parameters, cpu.parameters, strict=True):
            if not (fused and max_norm is None):  # such an optimizer takes the scale off itself
                assert mine.grad is not None and theirs.grad is not None
                assert torch.equal(bits(mine.grad.cpu()), bits(theirs.grad))
    assert skipped == 8


def test_the_host_waits_twice_in_a_pass(capfd):
    run = Run(GradScaler("cuda"), "cuda", lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    grads = [torch.randn(n) for n in (3000, 17, 5)]
    run.step(grads, None)
    run.scaler.scale(torch.zeros((), device="cuda"))
    # Once for the scale and once for what the pass found; none to step, for the host knows it.
    assert waits(lambda: run.scaler.unscale_(run.optimizer, max_norm=1e-3), capfd) == 2
    assert waits(lambda: run.scaler.step(run.optimizer), capfd) == 0
