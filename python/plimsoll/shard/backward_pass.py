"""The backward pass that is under way in this thread: what autograd tells of it, by names that torch keeps to itself."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch


def current_task() -> int:
    """Autograd's number of the pass that is under way; a pass inside another one, as a reentrant checkpoint starts it, has
    one of its own. -1: there is none."""
    return torch._C._current_graph_task_id()


class _End:
    """What autograd calls once a pass has ended well, and drops with the pass however it ended."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def __call__(self) -> None:
        self._callback()


class BackwardPass:
    """The pass that is under way. Only autograd keeps its end, so an exception that ends the pass ends :attr:`is_alive`."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.task = current_task()
        self._end = self._queue(callback)

    @property
    def is_alive(self) -> bool:
        return self._end() is not None

    @staticmethod
    def _queue(callback: Callable[[], None]) -> weakref.ref[_End]:
        # The only name for the end is in this frame: a traceback that somebody keeps would keep it alive, too.
        end = _End(callback)
        torch.autograd.Variable._execution_engine.queue_callback(end)  # type: ignore[attr-defined]
        return weakref.ref(end)
