"""Recipe that picks the format of each product by what its operands lose; plimsoll/common/precision.py has its state."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import ClassVar

from plimsoll.common.precision import Precision, checked_text
from plimsoll.common.recipe.base import Format, Recipe


@dataclass
class Auto(Precision, Recipe):
    """Ours: each product begins in the narrowest format of `ladder`, moves up when its operands lose too much, and comes back
    when it has been quiet (docs/auto.md). One recipe follows one model:

        auto = Auto()
        for step in range(steps):
            with plimsoll.pytorch.autocast(recipe=auto):
                loss = model(batch)
            loss.backward()
            optimizer.step()
            for change in auto.end_step(step, steps):
                print(change)

    ladder: "NARROW>WIDE", such as "mxfp8>bf16", or three formats, such as "e2m1>e4m3>bf16"; every: steps between two measured
    ones; votes of the last `ballots` measured steps (at most 64) promote; quiet: steps without a vote before a demotion; window:
    steps between two demotions of one product; last_share: of the run, at its end, without demotions; demote_share: of the
    bounds, from which on the mean load forbids one; mean_decay: of that mean; flushed: share of an input or a weight that may
    become zero, three times as much in four bits; bound: of input, weight and grad_output, as multiples of the format's rounding
    error. ValueError: one of them out of range.

    A copy or a pickle has the state of now and goes on by itself. Weights as codes
    (quantized_model_init) and layers that ranks share (tp_size > 1) are NotImplementedError in its scopes;
    FullyShardedDataParallel sends values in them.
    """

    ladder: str = "e4m3>bf16"
    every: int = 16
    votes: int = 2
    ballots: int = 4
    quiet: int = 200
    window: int = 500
    last_share: float = 0.1
    demote_share: float = 0.75
    mean_decay: float = 0.9
    flushed: float = 0.25
    bound: tuple[float, float, float] = (2.0, 2.0, 4.0)
    # The ladder has the formats.
    fp8_format: Format = field(default=Format.E4M3, init=False, repr=False, compare=False)
    override_linear_precision: tuple[bool, bool, bool] = field(default=(False,) * 3, init=False, repr=False, compare=False)
    backward_override: str | None = field(default=None, init=False, repr=False, compare=False)
    high_precision_format: str | None = field(default=None, init=False, repr=False, compare=False)

    _name: ClassVar[str] = "auto"

    def check(self) -> None:
        for each in fields(self):
            if not each.init and each.name != "high_precision_format":
                self._expect(
                    getattr(self, each.name) == each.default, each.name, f"{each.default!r} (the ladder has the formats)"
                )
        self.high_precision_format = checked_text(self._written())[1]

    def _written(self) -> str:
        arguments = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        try:
            return json.dumps({"name": self._name, **arguments}, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise type(error)(f"Auto: expected numbers and a string, got {self!r}") from None

    def _text(self) -> str:
        return checked_text(self._written())[0]

    def to_json(self, high_precision_format: str) -> str:
        """The text by which operators know that the scope's controller has the formats."""
        return self._text()
