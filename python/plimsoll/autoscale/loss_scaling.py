"""Loss scales that change: looked at before each step of an optimizer, which is skipped where gradients overflowed."""

from __future__ import annotations

import math
import warnings
import weakref
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from plimsoll.autoscale.policy import LossScale
from plimsoll.autoscale.sharded import shards_of, units_of
from plimsoll.autoscale.tensors import is_scaled

_ops = torch.ops.plimsoll
# A scale and its reciprocal are normal numbers of FP32.
_LEAST_EXPONENT, _LARGEST_EXPONENT = -126, 126
_BINS = 256  # of amp::GradientHistogram
_SKIPPED_IN_A_ROW = 20  # a scale that begins at 2^16 has come to 2^-4, at which gradients of that size have no place in FP16


class LossScaler:
    """The loss scale of one session. Without gradients torch's optimizers leave a parameter as it is: that skips a step.

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

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        module = self._module()
        shards = shards_of(module) if module is not None and self._ranks is not None else set()
        everything = [p for group in optimizer.param_groups for p in group["params"]]
        parameters = [p for p in everything if p in shards or self._scales(p)]
        if not parameters:
            return
        data = [self._data(p.grad) for p in parameters if p.grad is not None]
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
        self._notice_skips(non_finite > 0)
        self._update(non_finite > 0, norm, histogram)
        self._session.set_gradient_exponent(-self.exponent)

    def _notice_skips(self, skipped: bool) -> None:
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if skipped else 0
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

    def _data(self, grad: torch.Tensor) -> torch.Tensor:
        """The gradient with the scale on it. That of a shard, and one that is reduced by DistributedDataParallel, is a value."""
        return _ops.autoscale_data(grad) if is_scaled(grad) else grad * 2.0**self.exponent

    def _update(self, found_inf: bool, norm: float, histogram: torch.Tensor) -> None:
        scale = 2.0 ** min(max(self.exponent, _LEAST_EXPONENT), _LARGEST_EXPONENT)
        evidence = {"histogram": histogram, "grad_norm": norm / scale} if self._rule.growth == "histogram" else {}
        chosen, self._clean_steps, _ = _ops.next_loss_scale(
            scale=scale,
            growth_tracker=self._clean_steps,
            found_inf=found_inf,
            growth_interval=self._rule.growth_interval,
            min_scale=2.0**_LEAST_EXPONENT,
            max_scale=2.0**_LARGEST_EXPONENT,
            **evidence,
        )
        self.exponent = round(math.log2(chosen))


_followed: weakref.WeakKeyDictionary[torch.nn.Module, LossScaler] = weakref.WeakKeyDictionary()


def scaler_of(module: torch.nn.Module) -> LossScaler | None:
    """None, where the policy of autoscale() has no loss scale that changes."""
    return _followed.get(module)


def follow(module: torch.nn.Module, session: Any, rule: LossScale) -> LossScaler | None:
    """A scaler for the optimizers of a module, as long as that lives."""
    parameter = next((each for each in module.parameters() if is_scaled(each)), None)
    if rule.growth == "none" or (parameter is None and not units_of(module)):
        return None
    session_id = None if parameter is None else _ops.autoscale_session_id(parameter)
    scaler = _followed[module] = LossScaler(module, session, session_id, rule)
    handle = register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: scaler.before_step(optimizer))
    weakref.finalize(module, handle.remove)
    return scaler
