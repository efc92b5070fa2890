"""Tensors with a scale for each row, channel or block, and scales that are no powers of two."""

import copy
import io
from typing import Any

import plimsoll.autoscale as autoscale
import pytest
import torch
import torch.nn.functional as F

ROUNDING = 2.0**-11


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).half()


SCALES = {
    "a number": torch.tensor(3.0),
    "rows": torch.tensor([[3.0], [2.0**-20], [1e6], [0.7]]),
    "channels": torch.tensor([1.0, 2.0**-30, 5.0, 1e4, 1.0, 1.0]),
    "blocks": torch.tensor([[1.0, 2.0**20, 3.0], [0.1, 7.0, 2.0**-9]]),
}


def spread(scale):
    if scale.shape == (2, 3):
        scale = scale.repeat_interleave(2, 0).repeat_interleave(2, 1)
    return scale.double()


def scale_of(x) -> torch.Tensor:
    """Scales of a tensor that has several."""
    scale = autoscale.get_data_scale(x)[1]
    assert isinstance(scale, torch.Tensor)
    return scale


def converted(x):
    rows = [row for row in autoscale.report(x).ops if row.op == "autoscale::one_scale"]
    return rows[0].calls if rows else 0


def close(x, expected, roundings):
    error = (autoscale.value(x).double() - expected).abs()
    return (error <= roundings * ROUNDING * expected.abs() + 2.0**-40).all()


@pytest.mark.parametrize("name", SCALES)
def test_a_value_is_data_times_scale(name):
    data = random(4, 6)
    x = autoscale.scaled_array(data, SCALES[name])
    assert x.dtype == torch.float32 and x.shape == (4, 6) and autoscale.is_scaled(x)
    assert torch.equal(autoscale.value(x), (data.double() * spread(SCALES[name])).float())
    inside, scale = autoscale.get_data_scale(x)[0], torch.as_tensor(autoscale.get_data_scale(x)[1])
    assert torch.equal(inside, data) and torch.equal(scale.flatten(), SCALES[name].flatten())


@pytest.mark.parametrize("name", SCALES)
def test_operators_that_a_scale_passes_through_keep_it(name):
    data = random(4, 6)
    x = autoscale.scaled_array(data, SCALES[name])
    exact = data.double() * spread(SCALES[name])
    for result, expected, roundings in [
        (-x, -exact, 0.01),
        (x.abs(), exact.abs(), 0.01),
        (F.relu(x), exact.relu(), 0.01),
        (x.t(), exact.t(), 0.01),
        (x * 0.3, exact * 0.3, 0.01),
        (x / 7, exact / 7, 0.01),
        (x * -0.3, exact * -0.3, 1),
        (x * x, exact * exact, 1),
        (x / x, torch.ones(4, 6).double(), 1),
        (x + x, 2 * exact, 1),
        (x - 3 * x, -2 * exact, 2),
        (x.clone(), exact, 0.01),
        (x[1:3], exact[1:3], 0.01),
        (x.unsqueeze(0).expand(3, 4, 6), exact.expand(3, 4, 6), 0.01),
        (x.view(2, 2, 6), exact.view(2, 2, 6), 0.01),
        (x.chunk(2, 1)[1], exact[:, 3:], 0.01),
        (x[torch.tensor([2, 0])], exact[[2, 0]], 0.01),
    ]:
        assert not isinstance(autoscale.get_data_scale(result)[1], float)
        assert close(result, expected, roundings) and converted(result) == 0


def test_a_product_of_matrices_keeps_scales_of_rows_and_of_columns():
    a, b = random(4, 32, seed=1), random(32, 5, seed=2)
    rows, columns = SCALES["rows"], torch.tensor([1e-8, 1.0, 3.0, 2.0**30, 5.0])
    product: Any = autoscale.scaled_array(a, rows) @ autoscale.scaled_array(b, columns)
    expected = (a.double() * rows.double()) @ (b.double() * columns.double())
    size = (a.double().abs() * rows.double()) @ (b.double().abs() * columns.double())
    assert ((autoscale.value(product).double() - expected).abs() <= ROUNDING * expected.abs() + 32 * 2.0**-24 * size).all()
    assert converted(product) == 0 and list(scale_of(product).shape) == [4, 5]


def test_other_operators_see_one_scale_and_are_counted():
    data = random(4, 6)
    x = autoscale.scaled_array(data, torch.tensor([[1.0], [3.0], [0.5], [2.0]]))
    result = x + 1
    assert close(result, autoscale.value(x).double() + 1, 4) and converted(result) == 1
    assert converted(torch.softmax(x, 0)) == 2
    # The scale lies along the dimension that is summed over.
    result = x.t() @ autoscale.scaled_array(random(4, 3), 1)
    assert isinstance(autoscale.get_data_scale(result)[1], float)


def test_rebalance_and_set_scale_keep_the_value():
    x: Any = autoscale.scaled_array(random(4, 6), 0.25)
    rows = torch.tensor([[2.0], [4.0], [1.0], [8.0]])
    for result in (autoscale.rebalance(x, rows), autoscale.set_scale(x, rows), autoscale.as_scaled(autoscale.value(x), rows)):
        assert torch.equal(autoscale.value(result), autoscale.value(x))
    assert torch.equal(scale_of(autoscale.rebalance(x, rows)), rows * 0.25)
    assert torch.equal(scale_of(autoscale.set_scale(x, rows)), rows)
    assert autoscale.get_data_scale(autoscale.set_scale(autoscale.set_scale(x, rows), 0.5))[1] == 0.5
    leaf: Any = autoscale.as_scaled(random(4, 6).float()).requires_grad_()
    (autoscale.set_scale(leaf, rows) * 3).sum().backward()
    assert torch.equal(autoscale.value(leaf.grad), torch.full((4, 6), 3.0))


def test_a_reduction_within_a_block_keeps_the_scale():
    x = autoscale.scaled_array(random(4, 6), SCALES["rows"])
    exact = autoscale.value(x).double()
    for result, expected in [
        (x.sum(1), exact.sum(1)),
        (x.mean(-1, keepdim=True), exact.mean(-1, keepdim=True)),
        (x.amax(1), exact.amax(1)),
    ]:
        assert list(scale_of(result).shape) == list(expected.shape)
        assert close(result, expected, 8) and converted(x) == 0
    assert close(x.sum(0), exact.sum(0), 4) and converted(x) == 1


def test_what_is_written_keeps_its_scales():
    rows = torch.tensor([[3.0], [2.0**-20], [1e6], [0.7]])
    x = autoscale.scaled_array(random(4, 6), rows)
    expected = autoscale.value(x).double()
    x.mul_(1.5).add_(x, alpha=2)
    x[1].add_(2.0**-20)
    x[2:, :3].zero_()
    expected = expected * 1.5 * 3
    expected[1] += 2.0**-20
    expected[2:, :3] = 0
    scale: Any = autoscale.get_data_scale(x)[1]
    assert list(scale.shape) == [4, 1] and torch.equal(scale / scale[0], rows / rows[0])
    # Rows share an exponent, so an element's error is relative to the largest row.
    size = rows.double() * (autoscale.value(x).double().abs() / rows).amax()
    assert ((autoscale.value(x) - expected).abs() <= 4 * ROUNDING * expected.abs() + 2.0**-24 * size).all()


def test_an_optimizer_steps_a_parameter_of_several_scales():
    rows = torch.tensor([[1.0], [2.0**-9], [300.0]])
    start, target = torch.randn(3, 8, generator=torch.Generator().manual_seed(2)) * rows, torch.randn(8) * rows
    reference = torch.nn.Parameter(start.clone())
    weight: Any = torch.nn.Parameter(autoscale.as_scaled(start, rows))
    for parameter in (reference, weight):
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            (parameter - target).square().sum().backward()
            optimizer.step()
    assert list(scale_of(weight).shape) == [3, 1]
    assert ((autoscale.value(weight) - reference).abs() / rows).amax() < 2**-7


def test_a_module_of_several_scales_goes_through_its_state():
    rows = torch.tensor([[3.0], [0.7]])

    def layer():
        made: Any = torch.nn.Linear(4, 2, bias=False)
        made.weight = torch.nn.Parameter(autoscale.as_scaled(made.weight.detach(), rows))
        return autoscale.autoscale(made)

    first, second = layer(), layer()
    state = first.state_dict()
    assert list(state["weight.scale"].shape) == [2, 1]
    second.load_state_dict(state)
    x = torch.randn(3, 4)
    assert torch.equal(autoscale.value(first(x)), autoscale.value(second(x)))
    twin = copy.deepcopy(first)
    assert torch.equal(autoscale.value(twin.weight), autoscale.value(first.weight))


def test_a_rule_of_the_user_sees_and_returns_several_scales():
    @torch.library.custom_op("plimsoll_test::halved_rows", mutates_args=())
    def halved_rows(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    @autoscale.rule("plimsoll_test::halved_rows")
    def _(x):
        return autoscale.ScaledArray(x.data, x.scale / 2)

    x = autoscale.scaled_array(random(4, 6), SCALES["rows"])
    assert torch.equal(autoscale.value(halved_rows(x)), autoscale.value(x) / 2) and converted(x) == 0


def test_gradients_pass():
    a: Any = autoscale.scaled_array(random(4, 8), SCALES["rows"]).requires_grad_()
    b = autoscale.as_scaled(random(8, 3).float())
    (a @ b).sum().backward()
    expected: Any = autoscale.value(b).double().sum(1).expand(4, 8)
    assert (autoscale.value(a.grad).double() - expected).abs().amax() <= 2 * ROUNDING * expected.abs().amax()


def test_it_goes_through_a_file():
    x = autoscale.scaled_array(random(4, 6), SCALES["blocks"])
    file = io.BytesIO()
    torch.save(autoscale.pack({"x": x}), file)
    file.seek(0)
    assert torch.equal(autoscale.value(autoscale.unpack(torch.load(file))["x"]), autoscale.value(x))


@pytest.mark.parametrize(
    "scale, message",
    [
        (torch.ones(5), "expected a scale whose sizes divide"),
        (torch.ones(2, 4, 6), "expected a scale of at most 2 dimensions"),
        (torch.tensor([1.0, -1.0, 1.0]), "expected scales that are finite and larger than 0"),
    ],
)
def test_what_is_no_scale_is_refused(scale, message):
    with pytest.raises(ValueError, match=message):
        autoscale.scaled_array(random(4, 6), scale)


def test_data_that_the_format_does_not_hold_are_refused():
    with pytest.raises(RuntimeError, match="expected data that Half holds"):
        autoscale.scaled_array(torch.full((2, 2), 1e6), torch.ones(2, 1), dtype=torch.float16)
