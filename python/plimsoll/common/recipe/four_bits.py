"""Recipes in four bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from plimsoll.common.recipe.base import Format, Microscaling, Recipe


@dataclass
class NVFP4BlockScaling(Recipe):
    """E2M1 codes of four bits, an E4M3 scale for 16 along the sum (16 x 16 of a weight) and one FP32 scale a tensor. Gradients
    are rounded stochastically, and both operands of the weight's gradient are rotated along the tokens by a random
    Hadamard matrix of 16; its signs and the roundings come from torch's CPU generator, once a call. ``disable_rht``,
    ``disable_stochastic_rounding`` and ``disable_2d_quantization`` leave each of these out. Ours: ``four_over_six``, by
    which a block's largest value becomes 6 or 4, whichever loses less; or ``ms_eden``, MS-EDEN of Quartet II in backward: both
    operands of both products are rotated along the sum by a random Hadamard matrix of 128 (``disable_rht``) and rounded to
    nearest, and the scales of their blocks corrected for each 128 and rounded stochastically
    (``disable_stochastic_rounding``), which loses half of what stochastic elements do.

    The last 15 % of a model's blocks lose the most: run them in ``fp8_autocast(enabled=False)``. Weights as codes
    (quantized_model_init) and layers that ranks share (tp_size > 1) are a ValueError or RuntimeError."""

    disable_rht: bool = False
    disable_stochastic_rounding: bool = False
    disable_2d_quantization: bool = False
    fp4_format: Format = Format.E2M1
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    four_over_six: bool = False
    ms_eden: bool = False
    override_linear_precision: tuple[bool, bool, bool] = (False, False, False)
    high_precision_format: str | None = None

    _kinds: ClassVar[tuple[str, ...]] = ("nvfp4",)
    _only_at_default: ClassVar[tuple[str, ...]] = (*Recipe._only_at_default, "fp4_format", "fp8_format")
    _switches: ClassVar[tuple[str, ...]] = ("disable_rht", "disable_stochastic_rounding", "disable_2d_quantization")

    def check(self) -> None:
        super().check()
        for name in (*self._switches, "four_over_six", "ms_eden"):
            self._expect(isinstance(getattr(self, name), bool), name, "True or False", TypeError)
        self._expect(not (self.four_over_six and self.ms_eden), "ms_eden", "False with four_over_six")

    @property
    def _name(self) -> str:  # type: ignore[override]
        return "ms-eden" if self.ms_eden else "nvfp4-4over6" if self.four_over_six else "nvfp4"

    def _arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._switches}


@dataclass
class MXFP4BlockScaling(Microscaling):
    """Ours. OCP microscaling in four bits: E2M1 inputs and weights with a power of two for each 1 x 32 block; gradients are
    MXFP8BlockScaling's. ``rounding`` as there. What NVFP4BlockScaling says of weights as codes and of ranks holds here."""

    fp4_format: Format = Format.E2M1
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    rounding: str = "up"
    override_linear_precision: tuple[bool, bool, bool] = (False, False, False)
    high_precision_format: str | None = None

    _name: ClassVar[str] = "mxfp4"
    _only_at_default: ClassVar[tuple[str, ...]] = (*Recipe._only_at_default, "fp4_format", "fp8_format")
