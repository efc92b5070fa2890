"""Recipes: who picks the scale of each operand of eight or four bits, and when.

Names, fields and defaults are Transformer Engine's; what is ours says so. Recipes are values: scales and histories
belong to the modules. Auto alone, which is ours, has a state. docs/python.md lists what differs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar, NamedTuple

from plimsoll.common.precision import Precision, checked_text
from plimsoll.common.recipe_functions import number_of


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
    _only_at_default: ClassVar[tuple[str, ...]] = ("fp8_dpa", "fp8_mha")

    fp8_format: Format
    override_linear_precision: tuple[bool, bool, bool]
    backward_override: str | None
    high_precision_format: str | None

    @classmethod
    def delayed(cls) -> bool:
        return issubclass(cls, DelayedScaling)

    @classmethod
    def mxfp8(cls) -> bool:
        return issubclass(cls, MXFP8BlockScaling)

    @classmethod
    def float8_current_scaling(cls) -> bool:
        return issubclass(cls, Float8CurrentScaling)

    @classmethod
    def float8_per_tensor_scaling(cls) -> bool:
        return issubclass(cls, (DelayedScaling, Float8CurrentScaling))

    @classmethod
    def float8_block_scaling(cls) -> bool:
        return issubclass(cls, Float8BlockScaling)

    @classmethod
    def nvfp4(cls) -> bool:
        return issubclass(cls, NVFP4BlockScaling)

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

    _name: ClassVar[str] = "fp8-block"
    _only_at_default: ClassVar[tuple[str, ...]] = (
        *Recipe._only_at_default,
        "x_block_scaling_dim",
        "w_block_scaling_dim",
        "grad_block_scaling_dim",
    )

    def _arguments(self) -> dict[str, Any]:
        return {"power_of_two": not self.use_f32_scales}


class _Microscaling(Recipe):
    """Recipe with the OCP's scales, powers of two, which ``rounding`` rounds."""

    rounding: str

    def check(self) -> None:
        super().check()
        self._expect(self.rounding in ("up", "down"), "rounding", '"up" or "down"')

    def _arguments(self) -> dict[str, Any]:
        return {"rounding": self.rounding}


@dataclass
class MXFP8BlockScaling(_Microscaling):
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

    _name: ClassVar[str] = "mxfp8"
    _only_at_default: ClassVar[tuple[str, ...]] = (*Recipe._only_at_default, "margin")


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
class MXFP4BlockScaling(_Microscaling):
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


# The names of the C++ library.
CurrentScaling = Float8CurrentScaling
BlockScaling = Float8BlockScaling
Mxfp8 = MXFP8BlockScaling
Nvfp4Scaling = NVFP4BlockScaling
Mxfp4Scaling = MXFP4BlockScaling
