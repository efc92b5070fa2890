"""Recipes in eight bits that take scales from the tensor itself: one of it, of a row or of a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from plimsoll.common.recipe.base import Format, Microscaling, MMParams, Recipe


@dataclass
class Float8CurrentScaling(Recipe):
    """Scales from the tensor's own amax. Ours: ``granularity`` = "tensor", or "row" for one scale a row of the input and
    an output row of the weight."""

    use_power_2_scales: bool = False
    fp8_format: Format = Format.HYBRID
    fp8_gemm_fprop: MMParams = MMParams(use_split_accumulator=False)
    fp8_gemm_dgrad: MMParams = MMParams(use_split_accumulator=True)
    fp8_gemm_wgrad: MMParams = MMParams(use_split_accumulator=True)
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    granularity: str = "tensor"
    override_linear_precision: tuple[bool, bool, bool] = (False, False, False)
    high_precision_format: str | None = None

    _kinds: ClassVar[tuple[str, ...]] = ("float8_current_scaling", "float8_per_tensor_scaling")

    def check(self) -> None:
        super().check()
        self._expect(self.granularity in ("tensor", "row"), "granularity", '"tensor" or "row"')

    @property
    def _name(self) -> str:  # type: ignore[override]
        return "fp8-row" if self.granularity == "row" else "fp8-current"

    def _arguments(self) -> dict[str, Any]:
        return {"power_of_two": self.use_power_2_scales}


@dataclass
class Float8BlockScaling(Recipe):
    """A scale for each 1 x 128 block of inputs and gradients and each 128 x 128 block of weights."""

    use_f32_scales: bool = False
    fp8_format: Format = Format.E4M3
    x_block_scaling_dim: int = 1
    w_block_scaling_dim: int = 2
    grad_block_scaling_dim: int = 1
    fp8_gemm_fprop: MMParams = MMParams(use_split_accumulator=True)
    fp8_gemm_dgrad: MMParams = MMParams(use_split_accumulator=True)
    fp8_gemm_wgrad: MMParams = MMParams(use_split_accumulator=True)
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    override_linear_precision: tuple[bool, bool, bool] = (False, False, False)
    high_precision_format: str | None = None

    _kinds: ClassVar[tuple[str, ...]] = ("float8_block_scaling",)
    _name: ClassVar[str] = "fp8-block"
    _only_at_default: ClassVar[tuple[str, ...]] = (
        *Recipe._only_at_default,
        "x_block_scaling_dim",
        "w_block_scaling_dim",
        "grad_block_scaling_dim",
    )

    def _arguments(self) -> dict[str, Any]:
        return {"power_of_two": not self.use_f32_scales}


@dataclass
class MXFP8BlockScaling(Microscaling):
    """OCP microscaling: a power of two for each 1 x 32 block. Ours: ``rounding`` of that power = "up", under which no
    value saturates, or "down", the rule of the OCP text."""

    margin: int = 0
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = None
    rounding: str = "up"
    override_linear_precision: tuple[bool, bool, bool] = (False, False, False)
    high_precision_format: str | None = None

    _kinds: ClassVar[tuple[str, ...]] = ("mxfp8",)
    _name: ClassVar[str] = "mxfp8"
    _only_at_default: ClassVar[tuple[str, ...]] = (*Recipe._only_at_default, "margin")
