"""State of the recipe Auto in a run: the library's controller of formats (plimsoll/ops/scaling/precision_controller.h)."""

from __future__ import annotations

import functools
import json
import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch

from plimsoll._arguments import check_flag, check_size

# Scopes after which a missing end_step() is no accident: what a step's operands cost is kept until it.
_MOST_SCOPES = 1000


@functools.cache
def checked_text(text: str) -> tuple[str, str]:
    """The recipe with every argument, as operators take it, and its high-precision format. ValueError: it is none."""
    whole, wide = torch.ops.plimsoll.automatic_recipe(text)
    return whole, wide


def _number(value: float | None) -> float:
    return math.nan if value is None else value


@dataclass(frozen=True)
class PrecisionChange:
    """A product that another format is for from the next step on. As a string it is the line that `plimsoll train` says.

    product: "output", "grad_input" or "grad_weight"; step: the measured one, counted from 0; reason: "error", "flushed", "gradient",
    "not finite" or "quiet"; operand: whose `error`, or share of zeros, was compared with `bound`.
    """

    layer: str
    product: str
    step: int
    before: str
    after: str
    reason: str
    operand: str
    error: float
    bound: float
    line: str = field(repr=False)

    def __str__(self) -> str:
        return self.line


@dataclass(frozen=True)
class ProductPrecision:
    """A product of the last step.

    format: that of the next one; mean_error: exponential mean over the measured steps, load: of the largest error as a share of
    its bound; saturated, flushed: means of the larger share of both operands.
    """

    format: str
    multiply_adds: float
    mean_error: float
    load: float
    saturated: float
    flushed: float
    headroom_bits: float


class _Scopes:
    """Scopes with gradients since a step of any recipe ended."""

    count = 0

    @classmethod
    def opened(cls) -> None:
        cls.count += 1
        if cls.count == _MOST_SCOPES:
            warnings.warn(
                f"Auto: expected end_step() of the recipe after each optimizer step, got {_MOST_SCOPES} scopes without one: no "
                "product changes its format, and what was measured stays in memory. A recipe is made once and opened in each step",
                stacklevel=5,
            )


class Controller:
    """The library's controller, and what names the layers in its scopes (plimsoll/pytorch/autocast.py)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.library: Any = torch.ops.plimsoll.precision_controller(text)
        self.names: Any = None
        self.has_warned = False


class Precision:
    """Methods of a recipe whose formats follow the run."""

    _running: Controller | None = None

    def _text(self) -> str:
        raise NotImplementedError

    def controller(self) -> Controller:
        """The one of this recipe, made at first use. ValueError: an argument has changed since."""
        text = self._text()
        if self._running is None:
            self._running = Controller(text)
        if self._running.text != text:
            raise ValueError(f"Auto: expected arguments that stay as they are in a run, {self._running.text}, got {text}")
        return self._running

    def enter(self, owner: int, group: str | None, ranks: int, chosen: bool) -> int:
        """Opens a scope of the library for `owner` (plimsoll/_scope.py): its number."""
        number: int = self.controller().library.enter(owner, group, ranks, chosen)
        if torch.is_grad_enabled():
            _Scopes.opened()
        return number

    def end_step(self, step: int | None = None, steps: int = 0) -> list[PrecisionChange]:
        """Ends a step, after optimizer.step(), and decides in which format each product runs in the next one.

        step: counted from 0; None: the one after the last. steps: of the whole run, so that nothing is demoted in its last
        tenth; 0: nobody knows. Several ranks: a collective of the scopes' amax_reduction_group, in which all take the same
        decisions. Returns the changes. A warning, once: no layer has computed since the step before.
        """
        _Scopes.count = 0
        controller = self.controller()
        changes = controller.library.end_step(self._step(step), check_size("Auto.end_step", "steps", steps))
        if not controller.has_warned and not any(self.shares(of_last_step=True).values()):
            controller.has_warned = True
            warnings.warn(
                "Auto: expected layers of plimsoll.pytorch in a scope of this recipe since the step before, with gradients, got "
                "none. Other models are converted first: plimsoll.convert.convert(model)",
                stacklevel=2,
            )
        return [
            PrecisionChange(
                before=change.pop("from"),
                after=change.pop("to"),
                error=_number(change.pop("error")),
                bound=_number(change.pop("bound")),
                **change,
            )
            for change in json.loads(changes)
        ]

    def abandon_step(self, step: int | None = None) -> None:
        """Instead of end_step(): forgets what was measured in a step whose update a GradScaler skipped. A loss scale that
        is too large says nothing about the formats."""
        _Scopes.count = 0
        self.controller().library.abandon_step(self._step(step))

    def _step(self, step: int | None) -> int | None:
        return None if step is None else check_size("Auto", "step", step)

    def state_dict(self) -> dict[str, Any]:
        """All that a later run needs to take the same decisions, of numbers, strings, lists and dicts: `precision` in the
        state.json of a checkpoint of `plimsoll train`, and "step", the next one."""
        state: dict[str, Any] = json.loads(self.controller().library.state())
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the recipe was whose state it is. Layers find theirs by name. The scales are the modules' buffers, in
        the model's state dict. ValueError: it is no state, or that of another ladder; this one stays as it is then."""
        try:
            text = json.dumps(state)
        except (TypeError, ValueError) as error:
            raise ValueError(f"Auto: expected a state of state_dict(), got another: {error}") from None
        self.controller().library.load_state(text)

    def shares(self, *, of_last_step: bool = False) -> dict[str, float]:
        """Share of the multiply-adds in each format: of all steps, or of the last one."""
        shares = json.loads(self.controller().library.shares(check_flag("Auto.shares", "of_last_step", of_last_step)))
        return dict(zip(shares["formats"], shares["share"], strict=True))

    def products(self) -> dict[str, ProductPrecision]:
        """The products that the last step computed, by "layer/output", "layer/grad_input" and "layer/grad_weight"."""
        products = json.loads(self.controller().library.products())
        return {
            name: ProductPrecision(product.pop("format"), **{key: _number(value) for key, value in product.items()})
            for name, product in products.items()
        }

    def measures(self) -> bool:
        """Whether operands of the next step are measured."""
        return bool(self.controller().library.measures())

    def __getstate__(self) -> dict[str, Any]:
        """A copy or pickle goes on from here by itself."""
        state = {name: value for name, value in self.__dict__.items() if name != "_running"}
        return {**state, "state": None if self._running is None else self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        arguments = dict(state)
        running = arguments.pop("state")
        self.__dict__.update(arguments)
        if running is not None:
            self.load_state_dict(running)
