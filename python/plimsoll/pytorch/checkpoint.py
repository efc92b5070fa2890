"""Activation recompute: what a function saved for backward is made again there, with the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from torch.utils.checkpoint import checkpoint as torch_checkpoint

from plimsoll.amp.recompute import Contexts, carries_scopes, checkpoint_contexts
from plimsoll.pytorch.arguments import check_rest

Result = TypeVar("Result")

# Transformer Engine's, and the one value that has a meaning here.
ONLY = {"distribute_saved_activations": False, "debug": False}


class _Run(AbstractContextManager[None]):
    """`make()` for each time that it is entered: a graph that is retained runs its second pass twice."""

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self._make = make

    def __enter__(self) -> None:
        self._context = self._make()
        self._context.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._context.__exit__(*error)


def _inside(outer: Contexts, inner: Contexts) -> Contexts:
    @contextmanager
    def both(number: int) -> Iterator[None]:
        with outer[number], inner[number]:
            yield

    return _Run(lambda: both(0)), _Run(lambda: both(1))


def _tracker_contexts(tracker: Any) -> Contexts:
    states = tracker.get_states()

    @contextmanager
    def restored() -> Iterator[None]:
        now = tracker.get_states()
        tracker.set_states(states)
        try:
            yield
        finally:
            tracker.set_states(now)

    return nullcontext(), _Run(restored)


def checkpoint(
    function: Callable[..., Result],
    *args: Any,
    get_rng_state_tracker: Callable[[], Any] | None = None,
    context_fn: Callable[[], Contexts] | None = None,
    determinism_check: str = "default",
    preserve_rng_state: bool = True,
    distribute_saved_activations: bool = False,
    debug: bool = False,
    use_reentrant: bool = True,
    tp_group: Any = None,
    **kwargs: Any,
) -> Result:
    """function(*args, **kwargs), whose activations backward makes again instead of keeping them.

    The second run has the bits of the first: the same recipe, scales, autocast and precision table, the same random
    numbers, and no scaling state changes. Both values of `use_reentrant` mean the implementation without reentrance, which gives the
    gradients of either. `get_rng_state_tracker()` is an object with get_states() and set_states() whose random numbers
    are to be the same, too; `context_fn` as in torch.utils.checkpoint, inside ours.
    """
    check_rest("checkpoint", {"distribute_saved_activations": distribute_saved_activations, "debug": debug}, ONLY)

    @carries_scopes
    def contexts() -> Contexts:
        pair = checkpoint_contexts()
        if get_rng_state_tracker is not None:
            pair = _inside(pair, _tracker_contexts(get_rng_state_tracker()))
        return pair if context_fn is None else _inside(pair, context_fn())

    result: Result = torch_checkpoint(
        function,
        *args,
        use_reentrant=False,
        context_fn=contexts,
        determinism_check=determinism_check,
        preserve_rng_state=preserve_rng_state,
        **kwargs,
    )
    return result
