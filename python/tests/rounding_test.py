"""The comparisons of rounding.py fail where they should."""

import math

import pytest
import torch
from rounding import approx, gamma, rounds_alike, within


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values)


@pytest.mark.parametrize("ours", [-500.0, 4.0, math.nan, math.inf, -math.inf])
def test_another_number_is_beyond_the_bound(ours: float) -> None:
    assert not within(tensor(1, ours), tensor(1, -5), 0.5)
    assert not within(tensor(1, -5), tensor(1, ours), 0.5)
    assert ours != approx(-5, 8)


def test_other_shapes_and_bounds_of_nan_are_failures() -> None:
    assert not within(torch.ones(2), torch.ones(1), 1)
    assert not within(torch.ones(1), torch.ones(1), math.nan)


def test_a_bound_holds_to_its_end() -> None:
    assert within(tensor(1, 2), tensor(1.5, 1.5), 0.5) and not within(tensor(1, 2), tensor(1.5, 1.5), 0.4999)
    assert within(tensor(1, 2), tensor(1.5, 1.5), tensor(0.5, 0.5)) and not within(tensor(1, 2), tensor(1.5, 1.5), tensor(1, 0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_rounding_is_half_the_distance_of_two_numbers(dtype: torch.dtype) -> None:
    following = torch.nextafter(torch.ones((), dtype=dtype), torch.full((), 2, dtype=dtype)).item()
    assert gamma(1, dtype) == pytest.approx((following - 1) / 2 / (1 - (following - 1) / 2), rel=gamma(4, torch.float64))
    assert 1 + (following - 1) / 2 == approx(1.0, 1, dtype) and following != approx(1.0, 1, dtype)


@pytest.mark.parametrize("ours", [-500.0, 5.5, math.nan, math.inf])
def test_an_error_beyond_four_times_the_references_is_no_draw_of_the_same(ours: float) -> None:
    exact, theirs = tensor(3, -5), tensor(3, -5.1)
    assert rounds_alike(exact, theirs, exact) and rounds_alike(tensor(3, -4.7), theirs, exact)
    assert not rounds_alike(tensor(3, ours), theirs, exact) and not rounds_alike(tensor(3), theirs, exact)
    assert not rounds_alike(theirs, exact, exact)
