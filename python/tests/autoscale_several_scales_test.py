"""Tensors with a scale for each row, channel or block, and scales that are no powers of two."""
import io

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
    assert torch.allclose(autoscale.value(x).double(), data.double() * spread(SCALES[name]), rtol=2**-23, atol=0)
    inside, scale = autoscale.get_data_scale(x)
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
        (x * x, exact * exact, 1),
    ]:
        assert not isinstance(autoscale.get_data_scale(result)[1], float)
        assert close(result, expected, roundings) and converted(result) == 0


def test_a_product_of_matrices_keeps_scales_of_rows_and_of_columns():
    a, b = random(4, 32, seed=1), random(32, 5, seed=2)
    rows, columns = SCALES["rows"], torch.tensor([1e-8, 1.0, 3.0, 2.0**30, 5.0])
    product = autoscale.scaled_array(a, rows) @ autoscale.scaled_array(b, columns)
    expected = (a.double() * rows.double()) @ (b.double() * columns.double())
    size = (a.double().abs() * rows.double()) @ (b.double().abs() * columns.double())
    assert ((autoscale.value(product).double() - expected).abs() <= ROUNDING * expected.abs() + 32 * 2.0**-24 * size).all()
    assert converted(product) == 0 and list(autoscale.get_data_scale(product)[1].shape) == [4, 5]


def test_other_operators_see_one_scale_and_are_counted():
    data = random(4, 6)
    x = autoscale.scaled_array(data, torch.tensor([[1.0], [3.0], [0.5], [2.0]]))
    result = x + 1
    assert close(result, autoscale.value(x).double() + 1, 4) and converted(result) == 1
    # The scale lies along the dimension that is summed over.
    result = x.t() @ autoscale.scaled_array(random(4, 3), 1)
    assert isinstance(autoscale.get_data_scale(result)[1], float)


def test_rebalance_and_set_scale_keep_the_value():
    x = autoscale.scaled_array(random(4, 6), 0.25)
    rows = torch.tensor([[2.0], [4.0], [1.0], [8.0]])
    for result in (autoscale.rebalance(x, rows), autoscale.set_scale(x, rows), autoscale.as_scaled(autoscale.value(x), rows)):
        assert torch.equal(autoscale.value(result), autoscale.value(x))
    assert torch.equal(autoscale.get_data_scale(autoscale.rebalance(x, rows))[1], rows * 0.25)
    assert torch.equal(autoscale.get_data_scale(autoscale.set_scale(x, rows))[1], rows)


def test_gradients_pass():
    a = autoscale.scaled_array(random(4, 8), SCALES["rows"]).requires_grad_()
    b = autoscale.as_scaled(random(8, 3).float())
    (a @ b).sum().backward()
    expected = autoscale.value(b).double().sum(1).expand(4, 8)
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
    with pytest.raises(ValueError, match="expected data that torch.float16 holds"):
        autoscale.scaled_array(torch.full((2, 2), 1e6), torch.ones(2, 1))
