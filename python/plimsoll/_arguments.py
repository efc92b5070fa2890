"""Checks of what a caller hands over: one error that says what was expected and what came."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from typing import Any, TypeVar

import torch

Choice = TypeVar("Choice")


def shown(value: Any) -> str:
    """The value as an error shows it: a tensor by shape and dtype, anything else in one line."""
    if isinstance(value, torch.Tensor):
        return f"a tensor {list(value.shape)} of {value.dtype}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 100 else f"{text[:97]}..."


def check_choice(where: str, name: str, value: Choice, choices: tuple[Choice, ...]) -> Choice:
    if not any(isinstance(value, type(choice)) and value == choice for choice in choices):
        expected = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{where}: expected {name} one of {expected}, got {shown(value)}")
    return value


def check_text(where: str, name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{where}: expected {name} a string, got {shown(value)}")
    return value


def check_flag(where: str, name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{where}: expected {name} True or False, got {shown(value)}")
    return value


def check_size(where: str, name: str, value: Any, lowest: int | None = 0, highest: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, numbers.Integral)):
        raise TypeError(f"{where}: expected {name} an integer, got {shown(value)}")
    if lowest is not None and highest is not None and not lowest <= int(value) <= highest:
        raise ValueError(f"{where}: expected {name} from {lowest} to {highest}, got {value}")
    if lowest is not None and value < lowest:
        raise ValueError(f"{where}: expected {name} >= {lowest}, got {value}")
    return int(value)


def check_sizes(where: str, name: str, values: Any) -> list[int]:
    """Integers, of any sign, from what can be gone through, or a tensor of one dimension."""
    if isinstance(values, torch.Tensor) and values.dim() == 1:
        values = values.tolist()
    if isinstance(values, (str, bytes, torch.Tensor)) or not isinstance(values, Iterable):
        raise TypeError(f"{where}: expected {name} a list of integers, got {shown(values)}")
    return [check_size(where, f"{name}[{place}]", value, None) for place, value in enumerate(values)]


def check_number(where: str, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, numbers.Real)):
        raise TypeError(f"{where}: expected {name} a number, got {shown(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{where}: expected {name} that a float holds, got {shown(value)}") from None


def check_tensor(where: str, name: str, value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{where}: expected {name} a tensor, got {shown(value)}")
    return value


def check_dense(where: str, name: str, value: Any) -> torch.Tensor:
    tensor = check_tensor(where, name, value)
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        raise TypeError(f"{where}: expected {name} a dense tensor, got one of layout {layout}: {name}.to_dense() makes it one")
    return tensor
