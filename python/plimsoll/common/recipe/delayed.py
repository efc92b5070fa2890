"""Recipe that takes scales from the steps before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from plimsoll.common.recipe.base import Format, Recipe
from plimsoll.common.recipe_functions import number_of


@dataclass
class DelayedScaling(Recipe):
    """Scales from the amaxes of the steps before. Ours: interval is honoured, the first amax of an operand is its own,
    an amax that is not finite never enters a history, and ``power_of_two``.

    amax_compute_algo: "max", "most_recent" or a function of the history [amax_history_len, 1] (row 0 is this step's) that
    gives an amax. scaling_factor_compute_algo: a function of amax [1], the scale before [1], the format's largest number
    [1] and the recipe, or margin where its fourth argument has that name, that gives the scale that values are
    multiplied by. Both run in each step for each operand, so torch.compile and speed are better without.
    """

    margin: int = 0
    interval: int = 1
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: str | Callable[..., Any] = "max"
    scaling_factor_compute_algo: Callable[..., Any] | None = None
    override_linear_precision: tuple[bool, bool, bool] = (False, False, False)
    reduce_amax: bool = True
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    power_of_two: bool = False
    high_precision_format: str | None = None

    _kinds: ClassVar[tuple[str, ...]] = ("delayed", "float8_per_tensor_scaling")
    _name: ClassVar[str] = "fp8"

    def check(self) -> None:
        super().check()
        self._expect_integer("margin", -127, 127)
        self._expect_integer("interval", 1)
        self._expect_integer("amax_history_len", 1)
        amax = self.amax_compute_algo
        self._expect(callable(amax) or amax in ("max", "most_recent"), "amax_compute_algo", '"max", "most_recent" or a function')
        scale = self.scaling_factor_compute_algo
        self._expect(scale is None or callable(scale), "scaling_factor_compute_algo", "None or a function", TypeError)

    def _arguments(self) -> dict[str, Any]:
        names = ("margin", "interval", "amax_history_len", "reduce_amax", "power_of_two")
        arguments = {name: getattr(self, name) for name in names}
        if callable(self.amax_compute_algo):
            arguments["amax_function"] = number_of(self)
        else:
            arguments["amax_compute_algo"] = self.amax_compute_algo
        if self.scaling_factor_compute_algo is not None:
            arguments["inv_scale_function"] = number_of(self)
        return arguments
