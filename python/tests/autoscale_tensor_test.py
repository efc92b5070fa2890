"""Scaled tensors: making them, looking into them, writing into them, and meeting plain ones."""

import copy
import io
from typing import Any

import plimsoll.autoscale as autoscale
import pytest
import torch
import torch.nn.functional as F
from rounding import approx, gamma, within


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def close(x, expected, roundings=1):
    """To that many roundings of FP16, and as many units of its subnormal numbers where the largest element is near 1."""
    largest = expected.abs().amax()
    return within(autoscale.value(x), expected, gamma(roundings, torch.float16) * expected.abs() + roundings * 2**-24 * largest)


def test_a_scaled_array_is_data_and_scale():
    data = torch.tensor([1.0, -2.0, 0.5])
    x = autoscale.scaled_array(data, 2.0**-60, dtype=torch.float16)
    assert x.dtype == torch.float32 and x.shape == (3,)
    assert torch.equal(autoscale.value(x), data * 2.0**-60)
    inside, scale = autoscale.get_data_scale(x)
    assert inside.dtype == torch.float16 and torch.equal(inside.float(), data) and scale == 2.0**-60
    assert autoscale.get_data_scale(data) == (data, 1.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_data_stay_in_the_dtype_that_they_have(dtype):
    data = (torch.arange(1, 9) / 3).to(dtype)
    for scale in (2.0**-60, 0.3, torch.ones(4)):
        inside, _ = autoscale.get_data_scale(autoscale.scaled_array(data, scale))
        assert inside.dtype == dtype and torch.equal(inside, data)
    assert torch.equal(autoscale.value(autoscale.scaled_array(data, 2.0)), data.float() * 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool])
def test_data_in_no_format_of_scaled_tensors_need_a_dtype(dtype):
    with pytest.raises(TypeError, match=f"scaled_array: expected data of one of torch.float16, .* got data of {dtype}"):
        autoscale.scaled_array(torch.ones(2).to(dtype), 1.0)
    x = autoscale.scaled_array(torch.ones(2).to(dtype), 4.0, dtype=torch.bfloat16)
    assert torch.equal(autoscale.value(x), torch.full((2,), 4.0))


@pytest.mark.parametrize("scale", [-2.0, float("inf"), float("nan")])
def test_what_is_no_scale_is_refused(scale):
    with pytest.raises(ValueError, match="scaled_array: expected scales that are finite and larger than 0"):
        autoscale.scaled_array(torch.ones(2), scale)


def test_special_scales():
    data = torch.tensor([1.0, -2.0])
    assert torch.equal(autoscale.value(autoscale.scaled_array(data, None)), data)
    zero = autoscale.scaled_array(data, 0)
    assert torch.equal(autoscale.value(zero), torch.zeros(2)) and autoscale.get_data_scale(zero)[1] == 0
    x = autoscale.scaled_array(data, 2.0**-70)
    assert autoscale.get_data_scale(zero + x)[1] == 2.0**-70
    assert (zero / zero).isnan().all()
    assert torch.equal(autoscale.value(x.new_zeros(2) + x), data * 2.0**-70)


def test_data_that_do_not_fit_are_refused():
    with pytest.raises(RuntimeError, match="scaled_array: expected data that Half holds"):
        autoscale.scaled_array(torch.tensor([1e6, 1.0]), 1, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="set_scale: expected a scale under which Half"):
        autoscale.rebalance(autoscale.scaled_array(torch.ones(2).half(), 1), 2.0**-20)


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 300.0, 1e30])
def test_as_scaled_puts_any_size_into_the_middle_of_the_format(size):
    x = random(1000) * size
    scaled = autoscale.as_scaled(x)
    data, _ = autoscale.get_data_scale(scaled)
    assert 0.7 <= data.float().square().mean().sqrt() <= 1.42
    assert close(scaled, x)


def test_rescaling_changes_no_value():
    x = autoscale.as_scaled(random(64) * 1000)
    _, scale = autoscale.get_data_scale(x)
    for y, expected in ((autoscale.rebalance(x, 4), 4 * scale), (autoscale.set_scale(x, 256), 256)):
        assert torch.equal(autoscale.value(y), autoscale.value(x)) and autoscale.get_data_scale(y)[1] == expected
    largest = autoscale.get_data_scale(autoscale.dynamic_rescale_max(x))[0].abs().amax()
    assert 0.7 <= largest <= 1.42
    for function in (autoscale.dynamic_rescale_l1, autoscale.dynamic_rescale_l2):
        assert torch.equal(autoscale.value(function(autoscale.set_scale(x, 2))), autoscale.value(x))


def test_rescaling_is_nothing_to_autograd():
    x: Any = autoscale.as_scaled(random(8)).requires_grad_()
    (autoscale.rebalance(x, 4) * 3).sum().backward()
    assert torch.equal(autoscale.value(x.grad), torch.full((8,), 3.0))


def test_a_write_into_a_view_is_a_write_into_the_whole():
    plain = random(4, 8)
    x = autoscale.as_scaled(plain)
    before = autoscale.value(x).clone()
    x[1].mul_(2.0**20)
    x[2, 3:5] = 7.0
    x[:, 0].zero_()
    before[1] *= 2.0**20
    before[2, 3:5] = 7.0
    before[:, 0] = 0
    smallest = 2**-24 * autoscale.get_data_scale(x)[1]
    assert within(autoscale.value(x), before, gamma(2, torch.float16) * before.abs() + smallest)  # scaled once more
    assert torch.equal(autoscale.value(x[1]), autoscale.value(x)[1])


def test_plain_tensors_mix_with_scaled_ones():
    a, b = random(4, 8), random(4, 8, seed=1) * 1e-20
    x = autoscale.as_scaled(a)
    assert close(x + b, a) and close(b * x, a * b, 3) and close(x @ b.t(), a @ b.t(), 30)
    total = torch.ones(4, 8)
    total.add_(x)
    assert not autoscale.is_scaled(total) and within(total, 1 + a, gamma(1, torch.float16) * a.abs() + gamma(2) * (1 + a.abs()))
    target = torch.empty(4, 8)
    target.copy_(x)
    assert torch.equal(target, autoscale.value(x))
    assert torch.equal(torch.add(x, 1.0, out=torch.empty(4, 8)), autoscale.value(x) + 1)


def test_attention_masks_fit_any_scale():
    scores = random(2, 6, 6)
    lower = torch.ones(6, 6).tril().bool()
    for lowest in (float("-inf"), torch.finfo(torch.float32).min, -1e30, -1e9, -1e6, -1e4):
        mask = torch.zeros(6, 6).masked_fill(~lower, lowest)
        expected = F.softmax(scores + mask, -1)
        x = autoscale.as_scaled(scores)
        results = [x + mask, mask + x, x.masked_fill(~lower, lowest), torch.where(lower, x, lowest)]
        results += [torch.where(lower, x, torch.tensor(lowest)), x.clone().add_(mask), x.clone().masked_fill_(~lower, lowest)]
        for result in results:
            assert close(F.softmax(result, -1), expected, 8)


def test_what_is_not_finite_stays_so_and_disturbs_no_other_element():
    plain = torch.tensor([1.0, float("nan"), float("inf"), -float("inf"), 1e-3])
    x = autoscale.as_scaled(plain)
    for result, expected in ((x * 2, plain * 2), (x + 1, plain + 1), (x.relu(), plain.relu()), (x / 3, plain / 3)):
        value = autoscale.value(result)
        assert torch.equal(value.isnan(), expected.isnan()) and torch.equal(value.isinf(), expected.isinf())
        finite = expected.isfinite()
        assert within(value[finite], expected[finite], gamma(2, torch.float16) * expected[finite].abs())  # in and out


def test_a_scale_beyond_fp32_is_kept_and_its_value_is_infinite():
    x = autoscale.scaled_array(torch.ones(4), 2.0**100)
    square = x * x
    assert autoscale.get_data_scale(square)[1] == 2.0**200
    assert autoscale.value(square).isinf().all() and square.sum().item() == float("inf")
    assert torch.equal(autoscale.value(square / x), torch.full((4,), 2.0**100))


def test_a_branch_on_an_item_sees_the_value():
    x = autoscale.as_scaled(torch.tensor([3.0e-9, 4.0e-9]))
    assert x.sum().item() == approx(7e-9, 2, torch.float16)  # of an operand, and of the sum
    assert bool((x > 2e-9).all()) and not x.isnan().any()
    assert float(x[0]) == approx(3e-9, 1, torch.float16)


def test_an_operator_without_a_rule_is_counted_and_right():
    plain = random(16)
    x = autoscale.as_scaled(plain)
    assert close(torch.special.i0(x), torch.special.i0(autoscale.value(x)))
    assert autoscale.report(x).without_rule == ["aten::i0"]
    assert autoscale.report(x, clear=True).fallback_share == 1 and autoscale.report(x).calls == 0


def test_a_users_operator_runs_on_scaled_tensors():
    @torch.library.custom_op("plimsoll_test::halve_and_sort", mutates_args=())
    def halve_and_sort(x: torch.Tensor) -> torch.Tensor:
        return (x / 2).sort().values

    plain = random(16) * 1e-12
    assert close(halve_and_sort(autoscale.as_scaled(plain)), (plain / 2).sort().values, 2)


def test_the_bits_of_a_scaled_tensor_cannot_be_taken_for_those_of_its_value():
    x = autoscale.as_scaled(random(8))
    with pytest.raises(RuntimeError, match="view: expected a shape, got a dtype"):
        x.view(torch.int16)
    with pytest.raises(RuntimeError, match="expected an operator that leaves the shape"):
        x.resize_(4)


def test_a_view_in_place_is_one_of_the_same_memory():
    x = autoscale.as_scaled(random(3, 4))
    whole, expected = x.clone(), random(3, 4)
    y = whole.t()
    y.unsqueeze_(1).squeeze_(1).t_().transpose_(0, 1)
    assert y.shape == (4, 3) and torch.equal(autoscale.value(y), autoscale.value(x).t())
    y[0].zero_()
    expected[:, 0] = 0
    assert close(whole, expected)


def test_files_hold_data_and_scale():
    state: dict[str, Any] = {"step": 3, "states": [autoscale.as_scaled(random(8) * 1e-9), torch.ones(2)]}
    file = io.BytesIO()
    torch.save(autoscale.pack(state), file)
    file.seek(0)
    loaded: Any = autoscale.unpack(torch.load(file))
    assert torch.equal(autoscale.value(loaded["states"][0]), autoscale.value(state["states"][0]))
    assert loaded["step"] == 3 and torch.equal(loaded["states"][1], torch.ones(2))


def test_dtype_and_copies():
    x = autoscale.as_scaled(random(8) * 1e-7)
    half = x.to(torch.float16)
    assert half.dtype == torch.float16 and torch.equal(autoscale.value(half), autoscale.value(x).half().float())
    assert x.to(torch.int64).dtype == torch.int64 and not autoscale.is_scaled(x.long())
    parameter = torch.nn.Parameter(x)
    twin = copy.deepcopy(parameter)
    with torch.no_grad():
        twin.mul_(0)
    assert autoscale.value(parameter).any() and not autoscale.value(twin).any()
    parameter.data = torch.ones(8) * 5
    assert autoscale.is_scaled(parameter) and torch.equal(autoscale.value(parameter), torch.full((8,), 5.0))


COPIES = {
    "contiguous": lambda x: x.t().contiguous(),
    "reshape": lambda x: x.t().reshape(-1),
    "reshape_as": lambda x: x.t().reshape_as(x),
    "flatten": lambda x: x.t().flatten(),
    "to": lambda x: x.to(torch.float32, copy=True),
    "half": lambda x: x.half(),
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("inference", [False, True])
def test_a_copy_in_inference_mode_has_memory_of_its_own(name, inference):
    with torch.inference_mode(inference):
        x = autoscale.as_scaled(random(4, 6))
        before = autoscale.value(x).clone()
        y = COPIES[name](x)
        assert torch.equal(autoscale.value(y), COPIES[name](before).float())
        y.mul_(3).zero_()
        assert torch.equal(autoscale.value(x), before)
        view = x.reshape(2, 12)
        view.zero_()
        assert not autoscale.value(x).any()


def test_casts_in_inference_mode_are_those_of_the_values():
    with torch.inference_mode():
        x = autoscale.as_scaled(random(4, 6) * 1e3)
        value = autoscale.value(x)
        assert torch.equal(x.long(), value.long()) and not autoscale.is_scaled(x.long())
        assert x.half().dtype == torch.float16 and x.to(torch.bfloat16).dtype == torch.bfloat16
        assert x.contiguous() is x and x.cpu() is x


def test_codes_in_inference_mode_are_of_the_order_that_a_product_reads():
    layer: Any = autoscale.autoscale(torch.nn.Linear(12, 12), matmul_format="e4m3")

    def attend(x):
        heads = layer(x).view(2, 4, 3, 4).transpose(1, 2)
        return autoscale.value(layer(heads.reshape(2, 4, 12)).detach())

    expected = attend(random(2, 4, 12))
    with torch.inference_mode():
        assert torch.equal(attend(random(2, 4, 12)), expected)


def test_a_model_runs_in_inference_mode():
    model: Any = autoscale.autoscale(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8)))
    x = torch.randn(2, 3, 64)
    with torch.no_grad():
        expected = autoscale.value(model(x))
    with torch.inference_mode():
        y = model(x)
        assert torch.equal(autoscale.value(y), expected)
        assert y.is_inference() and y.view(-1).is_inference() and not model[0].weight.t().is_inference()
    loss = model(x).sum()
    loss.backward()
    assert model[0].weight.grad is not None
