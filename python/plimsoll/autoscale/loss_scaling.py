"""Loss scales that change: looked at before each step of an optimizer, which is skipped where gradients overflowed."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from plimsoll.autoscale.policy import LossScale
from plimsoll.autoscale.tensors import is_scaled

_ops = torch.ops.plimsoll
# As plimsoll.amp.AutomaticLossScaler has them.
_FLUSHED_SHARE, _HEADROOM = 2.0**-10, 8.0
# A scale and its reciprocal are normal numbers of FP32.
_LEAST_EXPONENT, _LARGEST_EXPONENT = -126, 126


class LossScaler:
    """The loss scale of one session. Without gradients torch's optimizers leave a parameter as it is: that skips a step."""

    def __init__(self, session: Any, session_id: int, rule: LossScale) -> None:
        self._session, self._session_id, self._rule = session, session_id, rule
        self.exponent = rule.exponent
        self.skipped = 0
        self._clean_steps = 0

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"] if self._scales(p)]
        if not parameters:
            return
        data = [_ops.autoscale_data(parameter.grad) for parameter in parameters]
        norm, _, non_finite, _, _, histogram = _ops.unscale_gradients_(data, 1.0)  # times 1: only looked at
        if non_finite:
            for parameter in parameters:
                parameter.grad = None
            self.skipped += 1
            self._clean_steps = 0
            self.exponent = max(self.exponent - 1, _LEAST_EXPONENT)
        else:
            self._clean_steps += 1
            self._after_clean_step(norm, histogram)
        self._session.set_gradient_exponent(-self.exponent)

    def _scales(self, parameter: torch.Tensor) -> bool:
        grad = parameter.grad
        return grad is not None and is_scaled(grad) and _ops.autoscale_session_id(grad) == self._session_id

    def _after_clean_step(self, norm: float, histogram: torch.Tensor) -> None:
        due = self._clean_steps >= self._rule.growth_interval
        if self._rule.growth == "histogram":
            scale = 2.0**self.exponent
            chosen = _ops.automatic_scale(
                histogram,
                scale=scale,
                grad_norm=norm / scale,
                may_grow=due,
                flushed_share=_FLUSHED_SHARE,
                headroom=_HEADROOM,
            )
            self.exponent = round(math.log2(chosen))
        elif due:
            self.exponent = min(self.exponent + 1, _LARGEST_EXPONENT)
        if due:
            self._clean_steps = 0


def follow(module: torch.nn.Module, session: Any, rule: LossScale) -> LossScaler | None:
    """A scaler for the optimizers of a module, as long as that lives."""
    parameter = next((each for each in module.parameters() if is_scaled(each)), None)
    if rule.growth == "none" or parameter is None:
        return None
    scaler = LossScaler(session, _ops.autoscale_session_id(parameter), rule)
    handle = register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: scaler.before_step(optimizer))
    weakref.finalize(module, handle.remove)
    return scaler
