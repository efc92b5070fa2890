"""Base of the recipes, and what their fields hold."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, ClassVar, NamedTuple


class _Largest(NamedTuple):
    max_fwd: float
    max_bwd: float


class Format(Enum):
    """Formats of codes in the forward and the backward pass; the value holds their largest numbers."""

    E2M1 = _Largest(6, 6)  # four bits: of NVFP4BlockScaling and MXFP4BlockScaling
    E4M3 = _Largest(448, 448)
    E5M2 = _Largest(57344, 57344)
    HYBRID = _Largest(448, 57344)  # E4M3 forward, E5M2 for gradients


@dataclass(frozen=True)
class MMParams:
    """Options of a matrix product. Products always accumulate in FP32, so both values give the same bits."""

    use_split_accumulator: bool = True


_HIGH_PRECISION = (None, "fp32", "bf16", "fp16")


class Recipe:
    """Base of all recipes. Ours, on each: ``override_linear_precision`` = (fprop, dgrad, wgrad), True runs that product
    in high precision; ``high_precision_format`` = "fp32", "bf16" or "fp16", None: the dtype of torch.autocast where that
    is on, else of the layer's parameters. ``backward_override``: both products of backward run in high
    precision, and read the input and the weight as they were before they became codes ("high_precision"), or the values of
    the forward's codes ("dequantized"), which are all that is kept."""

    _name: ClassVar[str]
    _kinds: ClassVar[tuple[str, ...]] = ()  # methods below that say True
    _only_at_default: ClassVar[tuple[str, ...]] = ("fp8_dpa", "fp8_mha")

    fp8_format: Format
    override_linear_precision: tuple[bool, bool, bool]
    backward_override: str | None
    high_precision_format: str | None

    @classmethod
    def delayed(cls) -> bool:
        return "delayed" in cls._kinds

    @classmethod
    def mxfp8(cls) -> bool:
        return "mxfp8" in cls._kinds

    @classmethod
    def float8_current_scaling(cls) -> bool:
        return "float8_current_scaling" in cls._kinds

    @classmethod
    def float8_per_tensor_scaling(cls) -> bool:
        return "float8_per_tensor_scaling" in cls._kinds

    @classmethod
    def float8_block_scaling(cls) -> bool:
        return "float8_block_scaling" in cls._kinds

    @classmethod
    def nvfp4(cls) -> bool:
        return "nvfp4" in cls._kinds

    @classmethod
    def custom(cls) -> bool:
        return False

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raises ValueError, or TypeError, that names the field, what was expected and what came."""
        self._expect(isinstance(self.fp8_format, Format), "fp8_format", "a Format", TypeError)
        self._expect(
            self.fp8_format in (Format.E4M3, Format.HYBRID),
            "fp8_format",
            "Format.E4M3 or Format.HYBRID (fewer mantissa bits are too few for inputs and weights)",
        )
        override = self.override_linear_precision
        three = isinstance(override, (tuple, list)) and len(override) == 3 and all(isinstance(item, bool) for item in override)
        self._expect(three, "override_linear_precision", "(fprop, dgrad, wgrad), each True or False", TypeError)
        self._expect(
            self.backward_override in (None, "high_precision", "dequantized"),
            "backward_override",
            'None, "high_precision" or "dequantized"',
        )
        self._expect(self.high_precision_format in _HIGH_PRECISION, "high_precision_format", f"one of {_HIGH_PRECISION}")
        for each in fields(self):  # type: ignore[arg-type]
            if each.name in self._only_at_default:
                self._expect(getattr(self, each.name) == each.default, each.name, f"{each.default!r} (the only one)")

    def _expect(self, condition: bool, field: str, expected: str, error: type[Exception] = ValueError) -> None:
        if not condition:
            raise error(f"{type(self).__name__}: expected {field} {expected}, got {getattr(self, field)!r}")

    def _expect_integer(self, field: str, lowest: int, highest: int | None = None) -> None:
        value = getattr(self, field)
        self._expect(isinstance(value, int) and not isinstance(value, bool), field, "an integer", TypeError)
        bounds = f">= {lowest}" if highest is None else f"in [{lowest}, {highest}]"
        self._expect(value >= lowest and (highest is None or value <= highest), field, bounds)

    def _arguments(self) -> dict[str, Any]:
        return {}

    def to_json(self, high_precision_format: str) -> str:
        """As C++ reads it (plimsoll/recipe/recipe.h). high_precision_format: where the recipe itself has none."""
        return json.dumps(
            {
                "name": self._name,
                **({} if "fp8_format" in self._only_at_default else {"fp8_format": self.fp8_format.name}),
                "override_linear_precision": list(self.override_linear_precision),
                "backward_override": self.backward_override or "none",
                "high_precision_format": self.high_precision_format or high_precision_format,
                **self._arguments(),
            }
        )


class Microscaling(Recipe):
    """Recipe with the OCP's scales, powers of two, which ``rounding`` rounds."""

    rounding: str

    def check(self) -> None:
        super().check()
        self._expect(self.rounding in ("up", "down"), "rounding", '"up" or "down"')

    def _arguments(self) -> dict[str, Any]:
        return {"rounding": self.rounding}
