"""Methods of scaling as policies of one engine, so that they can be compared.

What they share: formats, rounding, arithmetic and the optimizer's FP32 state. What differs is the exponent of each tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

METHODS = ("autoscale", "static", "published", "rms_grad", "amax", "delayed", "fixed", "carried", "unit")


@dataclass(frozen=True)
class LossScale:
    """Gradients begin at 2**exponent times their value. With a rule of growth, steps whose gradients overflow are skipped."""

    exponent: int = 16
    growth: str = "none"  # "none", "steps": doubled after so many without overflow, "histogram": as AutomaticLossScaler
    growth_interval: int = 2000

    def __post_init__(self) -> None:
        if self.growth not in ("none", "steps", "histogram"):
            raise ValueError(f"LossScale: expected growth to be none, steps or histogram, got {self.growth!r}")
        if self.growth_interval < 1:
            raise ValueError(f"LossScale: expected a growth_interval of at least 1, got {self.growth_interval}")


@dataclass(frozen=True)
class Policy:
    """One of those below."""

    name: str
    method: str
    exponent: int = 0  # of every tensor, where the method is "fixed"
    loss_scale: LossScale | None = None
    fine_grained: bool = True  # each tensor has a scale of its own
    alters_model: bool = False

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"Policy: expected method to be one of {', '.join(METHODS)}, got {self.method!r}")


def _exponent(scale: float, name: str) -> int:
    mantissa, exponent = math.frexp(scale)
    if mantissa != 0.5:
        raise ValueError(f"{name}: expected a power of two, got {scale}")
    return exponent - 1


def _loss_scaling(name: str, scale: float, growth: str = "none", growth_interval: int = 2000) -> Policy:
    rule = LossScale(_exponent(scale, name), growth, growth_interval)
    return Policy(name, "carried", loss_scale=rule, fine_grained=False)


none = Policy("none", "carried", fine_grained=False)
"""Plain storage in 16 bits."""


def loss_scale(scale: float = 2.0**16) -> Policy:
    """One constant scale for all gradients."""
    return _loss_scaling("loss_scale", scale)


def dynamic_loss_scale(scale: float = 2.0**16, growth_interval: int = 2000) -> Policy:
    """A loss scale that is halved, and the step skipped, where gradients overflow; doubled after growth_interval steps that do
    not."""
    return _loss_scaling("dynamic_loss_scale", scale, "steps", growth_interval)


def automatic_loss_scale(scale: float = 2.0**16, growth_interval: int = 20) -> Policy:
    """A loss scale that follows the histogram of the gradients, as plimsoll.amp.AutomaticLossScaler."""
    return _loss_scaling("automatic_loss_scale", scale, "histogram", growth_interval)


def constant_bias(exponent: int = 0) -> Policy:
    """Every tensor at 2**exponent: a format whose exponents have another bias."""
    return Policy("constant_bias", "fixed", exponent=exponent, fine_grained=False)


amax_bias = Policy("amax_bias", "amax")
"""Automatic bias selection: every result is measured, and its largest element put next to the format's largest."""
amax = Policy("amax", "amax")
"""The same, under the name that it has as a way of rescaling."""
delayed = Policy("delayed", "delayed")
"""The same, with what the result of the same call needed one step ago; what is larger by now saturates."""
static = Policy("static", "static")
"""Scales by the rules alone, from shapes and scales; only what enters and the gradient of a loss are measured."""
rms_grad = Policy("rms_grad", "rms_grad")
"""The same, and gradients are measured where they enter a product."""
scalify_static = Policy("scalify_static", "published")
"""The same as static, with exponents rounded down, as Scalify's published code has them."""
unit_scaling = Policy("unit_scaling", "unit", alters_model=True)
"""Weights of unit size, products times 1 / sqrt(terms), and no scale: another model than the one that was given."""
autoscale = Policy("autoscale", "autoscale")
"""Scales by the rules; results about which they say nothing, or that the format would not hold, are measured."""

_BY_NAME: dict[str, Policy | Callable[..., Policy]] = {
    "none": none,
    "loss_scale": loss_scale,
    "dynamic_loss_scale": dynamic_loss_scale,
    "automatic_loss_scale": automatic_loss_scale,
    "constant_bias": constant_bias,
    "amax_bias": amax_bias,
    "amax": amax,
    "delayed": delayed,
    "static": static,
    "rms_grad": rms_grad,
    "scalify_static": scalify_static,
    "unit_scaling": unit_scaling,
    "autoscale": autoscale,
}
NAMES = tuple(_BY_NAME)


def parse(policy: str | Policy) -> Policy:
    """A policy from its name, with a number where it takes one: "loss_scale(1024)"."""
    if isinstance(policy, Policy):
        return policy
    text = re.fullmatch(r"(\w+)(?:\(([-+.\w]+)\))?", policy) if isinstance(policy, str) else None
    if text is None or text[1] not in _BY_NAME:
        raise ValueError(f"autoscale: expected policy to be one of {', '.join(NAMES)}, got {policy!r}")
    found, argument = _BY_NAME[text[1]], text[2]
    if isinstance(found, Policy):
        if argument is not None:
            raise ValueError(f"autoscale: expected policy {text[1]} without a number, got {policy!r}")
        return found
    if argument is None:
        return found()
    return found(int(argument) if text[1] == "constant_bias" else float(argument))
