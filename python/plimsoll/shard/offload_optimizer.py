"""States of an optimizer that wait on disk."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary


def offload_optimizer(optimizer: torch.optim.Optimizer, offload_path: str) -> None:
    """After each step() the states of the shapes of their parameters (moments, momentum) are in files without names under
    the folder, mapped into memory, and their pages leave it. torch's optimizers make them in memory, so that the first step
    takes it once; later ones read the files. Same bits.

    A full disk is a RuntimeError in the first step.
    """
    mapped: Any = WeakIdKeyDictionary()  # states that are in files, which go with them

    def move(states: dict[str, Any], parameter: torch.Tensor) -> None:
        for key, state in states.items():
            if not torch.is_tensor(state) or state.shape != parameter.shape or state.dim() == 0:
                continue
            if state not in mapped:
                states[key] = torch.ops.plimsoll.mapped_zeros(list(state.shape), state.dtype, offload_path).copy_(state)
                mapped[states[key]] = True
            torch.ops.plimsoll.release_pages(states[key])

    def after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for parameter, states in optimizer.state.items():
            move(states, parameter)

    optimizer.register_step_post_hook(after_step)
