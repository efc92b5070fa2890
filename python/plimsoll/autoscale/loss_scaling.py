"""Loss scales that change: looked at before each step of an optimizer, which is skipped where gradients overflowed."""

from __future__ import annotations

import math
import warnings
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from plimsoll.autoscale.packing import LOSS_SCALE
from plimsoll.autoscale.policy import LossScale
from plimsoll.autoscale.saving import EnterArguments
from plimsoll.autoscale.sharded import shards_of, units_of
from plimsoll.autoscale.tensors import is_scaled

_ops = torch.ops.plimsoll
# A scale and its reciprocal are normal numbers of FP32.
_LEAST_EXPONENT, _LARGEST_EXPONENT = -126, 126
_BINS = 256  # of amp::GradientHistogram
_SKIPPED_IN_A_ROW = 20  # a scale that begins at 2^16 has come to 2^-4, at which gradients of that size have no place in FP16


@dataclass
class _Round:
    """One training step, in which optimizers step each parameter once. Where it began, and what all gradients held."""

    exponent: int
    clean_steps: int
    skipped_in_a_row: int
    parameters: set[int] = field(default_factory=set)  # by id()
    found_inf: bool = False
    norm: float = 0.0
    histogram: torch.Tensor = field(default_factory=lambda: torch.zeros(_BINS, dtype=torch.int64))


class LossScaler:
    """The loss scale of one session. Without gradients torch's optimizers leave a parameter as it is: that skips a step.
    The scale moves once for all optimizers of a training step. Where one steps before the backward pass of the next, as in a
    GAN, its overflow halves the scale of that pass, whose own overflow then does not.

    module: whose parameters are scaled, or shards of FullyShardedDataParallel. Of these each rank has a part, so what their
    gradients hold is shared, and a step is a collective."""

    def __init__(self, module: torch.nn.Module, session: Any, session_id: int | None, rule: LossScale) -> None:
        self._module = weakref.ref(module)
        self._session, self._session_id, self._rule = session, session_id, rule
        units = units_of(module)
        self._ranks = units[0]._ranks.handle if units else None
        self._calls = 0  # of the collective, which all ranks count alike
        self.exponent = rule.exponent
        self.skipped = 0  # steps
        self._skipped_in_a_row = 0
        self._warned = False
        self._clean_steps = 0
        self._round: _Round | None = None

    def is_of(self, module: torch.nn.Module) -> bool:
        """Whether the scale is this module's to set: the one that it was made for, or a copy that has outlived that."""
        original = self._module()
        return original is None or original is module

    def state(self) -> torch.Tensor:
        """Exponent, and steps since it moved, for a file."""
        return torch.tensor([self.exponent, self._clean_steps])

    def load(self, state: torch.Tensor) -> None:
        if state.shape != (2,) or state.is_floating_point():
            raise ValueError(
                f"autoscale: expected a loss scale's exponent and clean steps, got {state.dtype} of {list(state.shape)}"
            )
        exponent, self._clean_steps = state.tolist()
        self.exponent = min(max(exponent, _LEAST_EXPONENT), _LARGEST_EXPONENT)
        self._round = None
        self._session.set_gradient_exponent(-self.exponent)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        module = self._module()
        shards = shards_of(module) if module is not None and self._ranks is not None else set()
        everything = [p for group in optimizer.param_groups for p in group["params"]]
        parameters = [p for p in everything if p in shards or self._scales(p)]
        if not parameters:
            return
        step = self._round_of({id(parameter) for parameter in parameters})
        data = [self._data(p.grad, step.exponent) for p in parameters if p.grad is not None]
        norm, non_finite, histogram = 0.0, 0, torch.zeros(_BINS, dtype=torch.int64)
        if data:
            norm, _, non_finite, _, _, histogram = _ops.unscale_gradients_(data, 1.0)  # times 1: only looked at
        if self._ranks is not None:
            self._calls += 1
            found = _ops.share_findings(
                self._ranks, number=self._calls, gradients=len(data), non_finite=non_finite, grad_norm=norm, histogram=histogram
            )
            _, non_finite, norm, _, histogram = found
        if non_finite:
            for parameter in parameters:
                parameter.grad = None
            self.skipped += 1
        step.found_inf |= non_finite > 0
        step.norm = math.hypot(step.norm, norm)
        step.histogram = step.histogram + histogram
        self._notice_skips(step)
        self._update(step)
        self._session.set_gradient_exponent(-self.exponent)

    def _round_of(self, parameters: set[int]) -> _Round:
        if self._round is None or not self._round.parameters.isdisjoint(parameters):
            self._round = _Round(self.exponent, self._clean_steps, self._skipped_in_a_row)
        self._round.parameters |= parameters
        return self._round

    def _notice_skips(self, step: _Round) -> None:
        self._skipped_in_a_row = step.skipped_in_a_row + 1 if step.found_inf else 0
        if self._skipped_in_a_row == _SKIPPED_IN_A_ROW and not self._warned:
            self._warned = True
            warnings.warn(
                f"autoscale: {_SKIPPED_IN_A_ROW} steps in a row had gradients that were not finite and were skipped, and the loss"
                f" scale has come down to 2^{self.exponent}. Gradients that are not finite at any scale come from the model, its"
                " data, or values that FP16 does not hold without scales of their own, as policy='autoscale' has them",
                stacklevel=4,
            )

    def _scales(self, parameter: torch.Tensor) -> bool:
        """Whether there is a gradient of the session: a scaled one, or the value of one (gradients_as_values)."""
        grad = parameter.grad
        if grad is None:
            return False
        scaled = grad if is_scaled(grad) else parameter
        return is_scaled(scaled) and _ops.autoscale_session_id(scaled) == self._session_id

    @staticmethod
    def _data(grad: torch.Tensor, exponent: int) -> torch.Tensor:
        """The gradient with the scale on it. That of a shard, and one that is reduced by DistributedDataParallel, is a value."""
        return _ops.autoscale_data(grad) if is_scaled(grad) else grad * 2.0**exponent

    def _update(self, step: _Round) -> None:
        """From where the step began, however many of its optimizers have been seen."""
        scale = 2.0 ** min(max(step.exponent, _LEAST_EXPONENT), _LARGEST_EXPONENT)
        evidence = {"histogram": step.histogram, "grad_norm": step.norm / scale} if self._rule.growth == "histogram" else {}
        chosen, self._clean_steps, _ = _ops.next_loss_scale(
            scale=scale,
            growth_tracker=step.clean_steps,
            found_inf=step.found_inf,
            growth_interval=self._rule.growth_interval,
            min_scale=2.0**_LEAST_EXPONENT,
            max_scale=2.0**_LARGEST_EXPONENT,
            **evidence,
        )
        self.exponent = round(math.log2(chosen))


# By what a module and its copies share, as they share the session.
_followed: weakref.WeakKeyDictionary[EnterArguments, LossScaler] = weakref.WeakKeyDictionary()


def scaler_of(module: torch.nn.Module) -> LossScaler | None:
    """None, where the policy of autoscale() has no loss scale that changes."""
    hooks = (hook for hook in module._forward_pre_hooks.values() if isinstance(hook, EnterArguments))
    return next((_followed[hook] for hook in hooks if hook in _followed), None)


def follow(module: torch.nn.Module, session: Any, rule: LossScale, entering: EnterArguments) -> None:
    """Makes a scaler for the optimizers of a module and its copies, as long as one of them, and so `entering`, lives."""
    parameter = next((each for each in module.parameters() if is_scaled(each)), None)
    if rule.growth == "none" or (parameter is None and not units_of(module)):
        return
    session_id = None if parameter is None else _ops.autoscale_session_id(parameter)
    scaler = _followed[entering] = LossScaler(module, session, session_id, rule)
    handle = register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: scaler.before_step(optimizer))
    weakref.finalize(entering, handle.remove)


def save_loss_scale(module: torch.nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
    """In a state dict, the loss scale as `autoscale.loss_scale`."""
    scaler = scaler_of(module)
    if scaler is not None:
        state[prefix + LOSS_SCALE] = scaler.state()


def load_loss_scale(module: torch.nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """The inverse. Left out by a module whose policy has no loss scale that changes, and by a copy while its original, which may be
    in training, lives."""
    saved, scaler = state.pop(prefix + LOSS_SCALE, None), scaler_of(module)
    if saved is not None and scaler is not None and scaler.is_of(module):
        scaler.load(saved)
