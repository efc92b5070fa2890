"""Bounds of rounding, by the number of roundings and their format; and the comparison."""

from typing import Any

import pytest
import torch


def gamma(roundings: int, dtype: torch.dtype = torch.float32) -> float:
    """Largest relative error of that many roundings to nearest, one after another, or of a sum of one more terms relative to
    their magnitudes. Source: Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1."""
    unit = torch.finfo(dtype).eps / 2
    return roundings * unit / (1 - roundings * unit)


def approx(expected: Any, roundings: int, dtype: torch.dtype = torch.float32) -> Any:
    """Numbers that are `expected` but for that many roundings."""
    return pytest.approx(expected, rel=gamma(roundings, dtype), abs=0)


def rounds_alike(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether ours is as near to the exact result, in norm, as a reference that rounds as often in the same format: its draw
    of the roundings is another one, so the factor between the two is at most four."""
    error, allowed = ((each.double() - exact.double()).norm() for each in (ours, theirs))
    return ours.shape == exact.shape and bool(error <= 4 * allowed)


def within(ours: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor | float) -> bool:
    """Whether each element is within its bound. A comparison with NaN is false, so NaN and Inf fail."""
    return ours.shape == expected.shape and bool(((ours.double() - expected.double()).abs() <= bound).all())
