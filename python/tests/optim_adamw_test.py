"""plimsoll.optim.AdamW against torch.optim.AdamW, and against itself across restarts, threads and dtypes."""

import copy

import plimsoll.pytorch as te
import pytest
import torch
from plimsoll.optim import AdamW
from torch import nn

STEPS = 4
SHAPES = [(33, 17), (5,), (), (0, 3)]


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def groups(own):
    return [{"params": own[:2], "weight_decay": 0.1}, {"params": own[2:], "lr": 3e-3}]


def give_gradients(own, step):
    generator = torch.Generator().manual_seed(10 + step)
    for parameter in own:
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


def train(optimizer, own, steps):
    for step in steps:
        give_gradients(own, step)
        optimizer.step()


def test_fp32_parameters_make_the_steps_of_torch():
    ours, theirs = parameters(), parameters()
    train(AdamW(groups(ours), lr=1e-2), ours, range(STEPS))
    train(torch.optim.AdamW(groups(theirs), lr=1e-2), theirs, range(STEPS))
    # Some ten roundings a step on each side, of terms no larger than the value and what it moves by.
    bound = 20 * STEPS * torch.finfo(torch.float32).eps
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.all((mine - other).abs() <= bound * (1 + other.abs()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_parameters_are_the_nearest_of_masters_that_take_fp32_steps(dtype):
    ours, wide = parameters(dtype), [nn.Parameter(p.detach().float()) for p in parameters(dtype)]
    optimizer = AdamW(groups(ours), lr=1e-2)
    reference = AdamW(groups(wide), lr=1e-2)
    for step in range(STEPS):
        give_gradients(ours, step)
        for parameter, narrow in zip(wide, ours, strict=True):
            parameter.grad = narrow.grad.float()
        optimizer.step()
        reference.step()
    for parameter, master in zip(ours, wide, strict=True):
        assert torch.equal(optimizer.state[parameter]["master"], master)
        assert torch.equal(parameter, master.to(dtype))


def test_many_small_steps_move_a_narrow_parameter():
    weight = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    optimizer = AdamW([weight], lr=1e-4, weight_decay=0.0)
    for _ in range(100):  # each a fortieth of what BF16 can show next to 1
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert torch.all(weight == 253 / 256)  # 1 - 100 * 1e-4, rounded to BF16


def test_a_narrow_parameter_that_somebody_writes_is_the_new_master():
    (weight,) = [nn.Parameter(torch.ones(8, dtype=torch.bfloat16))]
    optimizer = AdamW([weight], lr=1e-3, weight_decay=0.0)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    with torch.no_grad():
        weight.fill_(4.0)
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert torch.all((optimizer.state[weight]["master"] - 4.0).abs() < 2e-3)


def test_a_step_is_seen_by_what_is_kept_of_the_weight():
    layer = te.Linear(32, 32)
    x = torch.randn(3, 32)
    layer(x, is_first_microbatch=True).sum().backward()
    before = layer.weight._version
    AdamW(layer.parameters(), lr=0.1).step()
    assert layer.weight._version > before
    with pytest.raises(RuntimeError, match="changed since"):
        layer(x, is_first_microbatch=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_second_backward_after_a_step_is_torchs_error(dtype):
    layer = nn.Linear(8, 8).to(dtype)
    loss = layer(torch.ones(2, 8, dtype=dtype, requires_grad=True)).sum()
    loss.backward(retain_graph=True)
    AdamW(layer.parameters()).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_weight_of_codes_counts_a_step():
    with te.fp8_model_init():
        layer = te.Linear(32, 32)
    layer(torch.randn(3, 32)).sum().backward()
    before = layer.weight._version
    AdamW(layer.parameters(), lr=0.1).step()
    assert layer.weight._version > before


@pytest.mark.parametrize("masters", ["fp32", "split", "none"])
@pytest.mark.parametrize("optimizer_state", ["fp32", "bf16", "8bit"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_run_that_is_saved_and_loaded_goes_on_with_the_same_bits(dtype, optimizer_state, masters):
    kinds = {"optimizer_state": optimizer_state, "masters": masters}
    whole, parts = parameters(dtype), parameters(dtype)
    train(AdamW(groups(whole), lr=1e-2, **kinds, seed=7), whole, range(STEPS))
    first = AdamW(groups(parts), lr=1e-2, **kinds, seed=7)
    train(first, parts, range(2))
    state = copy.deepcopy(first.state_dict())
    again = [nn.Parameter(parameter.detach().clone()) for parameter in parts]
    second = AdamW(groups(again), lr=5.0, **kinds, seed=7)
    second.load_state_dict(state)
    train(second, again, range(2, STEPS))
    assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))
    state = second.state[again[0]]
    assert state["exp_avg"].dtype == {"fp32": torch.float32, "bf16": torch.bfloat16, "8bit": torch.int8}[optimizer_state]
    assert ("correction" in state) == (masters == "split" and dtype == torch.bfloat16)


BYTES = {"fp32": 8, "bf16": 4, "8bit": 2 + 4 / 32, "master": 4, "split": 1, "none": 0}


@pytest.mark.parametrize("masters", ["fp32", "split", "none"])
@pytest.mark.parametrize("optimizer_state", ["fp32", "bf16", "8bit"])
def test_states_take_the_bytes_that_the_page_says(optimizer_state, masters):
    weight = nn.Parameter(torch.zeros(64, 32, dtype=torch.bfloat16))
    optimizer = AdamW([weight], optimizer_state=optimizer_state, masters=masters)
    train(optimizer, [weight], [0])
    held = sum(state.nbytes for name, state in optimizer.state[weight].items() if name != "step")
    assert held == weight.numel() * (BYTES[optimizer_state] + BYTES["master" if masters == "fp32" else masters])


@pytest.mark.parametrize("to", [("fp32", "fp32"), ("bf16", "split"), ("8bit", "none"), ("8bit", "split")])
@pytest.mark.parametrize("of", [("fp32", "fp32"), ("bf16", "split"), ("8bit", "none"), ("8bit", "split")])
def test_states_of_one_kind_load_into_another(of, to):
    theirs = parameters(torch.bfloat16)
    trained = AdamW(groups(theirs), lr=1e-2, optimizer_state=of[0], masters=of[1])
    train(trained, theirs, range(STEPS))
    ours = [nn.Parameter(parameter.detach().clone()) for parameter in theirs]
    optimizer = AdamW(groups(ours), optimizer_state=to[0], masters=to[1])
    optimizer.load_state_dict(trained.state_dict())
    assert [(group["optimizer_state"], group["masters"]) for group in optimizer.param_groups] == [to, to]
    train(optimizer, ours, [STEPS])
    train(trained, theirs, [STEPS])
    # Two updates differ by twice the largest there is, lr * (1 - beta1) / sqrt(1 - beta2), 3.2 times lr, and BF16 weights by
    # their last place. What each moment and weight may be off is tested in C++.
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.all((mine.float() - other.float()).abs() <= 2 * 3.2 * 1e-2 + 2**-7 * other.float().abs())
    state = optimizer.state[ours[0]]
    assert ("exp_avg_scale" in state) == (to[0] == "8bit") and ("master" in state) == (to[1] == "fp32")


@pytest.mark.parametrize("masters", ["fp32", "split", "none"])
@pytest.mark.parametrize("optimizer_state", ["fp32", "bf16", "8bit"])
def test_gradients_that_are_released_in_backward_give_the_same_bits_and_are_never_there_together(optimizer_state, masters):
    def model():
        torch.manual_seed(3)
        return nn.Sequential(*(nn.Linear(64, 64) for _ in range(6))).bfloat16()

    def loss(of, step):
        torch.manual_seed(step)
        return of(torch.randn(4, 64, dtype=torch.bfloat16)).square().mean()

    kinds = {"lr": 1e-2, "optimizer_state": optimizer_state, "masters": masters, "seed": 7}
    released, kept = model(), model()
    own, reference = AdamW(released.parameters(), **kinds), AdamW(kept.parameters(), **kinds)
    peak = []
    for parameter in released.parameters():  # before a gradient is added
        parameter.register_hook(
            lambda grad: peak.append(grad.nbytes + sum(p.grad.nbytes for p in released.parameters() if p.grad is not None))
        )
    for step in range(STEPS):
        with own.release_gradients():
            loss(released, step).backward()
        assert all(parameter.grad is None for parameter in released.parameters())
        loss(kept, step).backward()
        reference.step()
        reference.zero_grad()
        assert all(torch.equal(a, b) for a, b in zip(released.parameters(), kept.parameters(), strict=True))
    assert max(peak) == released[0].weight.nbytes
    loss(released, STEPS).backward()
    assert all(parameter.grad is not None for parameter in released.parameters()), "the hooks are gone"


def test_a_copy_goes_on_by_itself_with_the_same_bits():
    own = parameters(torch.bfloat16)
    optimizer = AdamW(groups(own), lr=1e-2, optimizer_state="bf16", seed=7)
    train(optimizer, own, range(2))
    twin, twins = copy.deepcopy((optimizer, own))
    train(optimizer, own, range(2, STEPS))
    train(twin, twins, range(2, STEPS))
    assert all(torch.equal(a, b) for a, b in zip(own, twins, strict=True))


def test_the_state_of_torchs_adamw_can_be_loaded_and_given_back():
    theirs, ours = parameters(), parameters()
    reference = torch.optim.AdamW(groups(theirs), lr=1e-2)
    train(reference, theirs, range(2))
    with torch.no_grad():
        for mine, other in zip(ours, theirs, strict=True):
            mine.copy_(other)
    optimizer = AdamW(groups(ours), lr=1e-2)
    optimizer.load_state_dict(copy.deepcopy(reference.state_dict()))
    train(optimizer, ours, range(2, STEPS))
    train(reference, theirs, range(2, STEPS))
    bound = 20 * STEPS * torch.finfo(torch.float32).eps
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.all((mine - other).abs() <= bound * (1 + other.abs()))
    reference.load_state_dict(optimizer.state_dict())
    assert float(reference.state[theirs[0]]["step"]) == STEPS


def test_bits_do_not_depend_on_threads():
    results = []
    for threads in (1, 2):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            weight = nn.Parameter(torch.linspace(-1, 1, 200_001))
            optimizer = AdamW([weight], optimizer_state="bf16", seed=3)
            for step in range(2):
                give_gradients([weight], step)
                optimizer.step()
            results.append(weight.detach().clone())
        finally:
            torch.set_num_threads(before)
    assert torch.equal(*results)


def test_moments_in_bf16_stay_near_those_in_fp32():
    weights = [nn.Parameter(torch.zeros(4096)) for _ in range(2)]
    for weight, kind in zip(weights, ("fp32", "bf16"), strict=True):
        optimizer = AdamW([weight], lr=1e-3, weight_decay=0.0, optimizer_state=kind)
        train(optimizer, [weight], range(200))
    # An update is at most lr; one that is rounded by 2^-8 in each moment is wrong by at most 3 of them, and signs vary.
    assert (weights[0] - weights[1]).abs().mean() <= 200 * 1e-3 * 3 * 2**-8


def test_schedulers_closures_and_the_scaler_of_amp_drive_it():
    from plimsoll.amp import GradScaler

    model = nn.Linear(4, 2)
    optimizer, scaler = AdamW(model.parameters(), lr=1e-2), GradScaler("cpu")
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    scaler.scale(model(torch.ones(3, 4)).square().sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 1e-2 / 2
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    optimizer.zero_grad()

    def closure():
        loss = model(torch.ones(3, 4)).square().sum()
        loss.backward()
        return loss

    assert float(optimizer.step(closure).detach()) > 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"lr": -1.0}, "expected lr to be finite and >= 0, got -1"),
        ({"lr": float("nan")}, "expected lr to be finite and >= 0"),
        ({"lr": float("inf")}, "expected lr to be finite and >= 0"),
        ({"lr": "a"}, "expected lr to be finite and >= 0, got 'a'"),
        ({"lr": torch.ones(2)}, "expected lr to be finite and >= 0"),
        ({"betas": (0.9, 1.0)}, "two betas"),
        ({"eps": -1e-8}, "expected eps to be finite and >= 0"),
        ({"weight_decay": -0.1}, "expected weight_decay to be finite and >= 0"),
        ({"seed": -1}, "expected seed to be an int in .*, got -1"),
        ({"seed": 1.5}, "expected seed to be an int in .*, got 1.5"),
        ({"amsgrad": True}, "expected amsgrad=False"),
        ({"maximize": True}, "expected maximize=False"),
        ({"optimizer_state": "fp16"}, "expected optimizer_state fp32, bf16, 8bit, got fp16"),
        ({"masters": "half"}, "expected masters fp32, split, none, got half"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=f"AdamW: .*{message}"):
        AdamW(parameters(), **arguments)


@pytest.mark.parametrize(
    "parameter", [torch.zeros(4, dtype=torch.float64), torch.zeros(4, 4).t()[:, :2], torch.zeros(3, device="meta")]
)
def test_parameters_of_another_kind_are_refused_and_leave_no_group(parameter):
    optimizer = AdamW(parameters())
    with pytest.raises(TypeError, match="AdamW: expected parameter 0 of group 1"):
        optimizer.add_param_group({"params": [nn.Parameter(parameter)]})
    assert len(optimizer.param_groups) == 1


def test_clipping_and_a_loss_scale_are_refused_where_gradients_are_released():
    optimizer = AdamW(parameters())
    for options in ({"max_norm": 1.0}, {"inv_loss_scale": 2**-16}):
        with pytest.raises(ValueError, match="without clipping by their whole norm"), optimizer.release_gradients(**options):
            pass


def test_float16_parameters_have_fp32_masters_only():
    for masters in ("split", "none"):
        with pytest.raises(TypeError, match=f"parameter 0 of group 0 to be of float32 or bfloat16 with masters='{masters}'"):
            AdamW(parameters(torch.float16), masters=masters)


def test_a_sparse_gradient_is_refused():
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = AdamW(table.parameters())
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="dense gradients"):
        optimizer.step()
