"""Count of the times that the host waits for the card."""

import warnings
from collections.abc import Callable
from typing import Any

import torch


def waits(work: Callable[[], Any], capfd: Any) -> int:
    """Number of times that the host waits for the card in `work`. Torch warns in Python or, where no Python runs, on stderr."""
    torch.cuda.synchronize()
    capfd.readouterr()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    said = [str(each.message) for each in caught] + capfd.readouterr().err.splitlines()
    return sum("called a synchronizing CUDA operation" in each for each in said)
