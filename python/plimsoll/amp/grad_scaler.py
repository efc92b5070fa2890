"""torch.amp.GradScaler whose gradients are unscaled, checked, measured and clipped in one pass."""

import math
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from plimsoll._arguments import check_size
from plimsoll.amp.autocast import default_device
from plimsoll.amp.scaler_arguments import (
    check_bounds,
    check_growth,
    check_norm,
    check_scale,
    check_state,
    checked_optimizers,
)


@dataclass(frozen=True)
class StepReport:
    """Facts about the gradients of one optimizer."""

    grad_norm: float  # L2, without the scale, before clipping; not finite if skipped
    clip_factor: float  # min(1, max_norm / (grad_norm + 1e-6))
    non_finite: int  # elements
    first_non_finite: str | None  # the first parameter that holds one: "parameter 3 of group 0"
    flushed_share: float  # of the elements with the scale on them, those that fp16 holds as zero or subnormal

    @property
    def skipped(self) -> bool:
        return self.non_finite > 0


def _unscales_on(device: torch.device) -> bool:
    """Whether this process has the pass for gradients there; others are left to torch."""
    return device.type == "cpu" or (device.type == "cuda" and bool(torch.ops.plimsoll.cuda_can_launch()))


def _clip(optimizer: torch.optim.Optimizer, max_norm: float) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    # torch's clipping has no sparse gradients.
    if any(grad.is_sparse for grad in grads) and all(_unscales_on(grad.device) for grad in grads):
        torch.ops.plimsoll.unscale_gradients_(grads, 1.0, max_norm=max_norm)
        return
    torch.nn.utils.clip_grad_norm_(parameters, max_norm)


def found_on_host(found_inf: torch.Tensor, found: bool) -> dict[torch.device, torch.Tensor]:
    """The result of torch's _unscale_grads_ in memory of the host: torch's step() reads it, and would wait for a device again."""
    return {found_inf.device: torch.full_like(found_inf, float(found), device="cpu")}


def _inverse(scale: float) -> float:
    """In fp32; Inf where that does not hold it."""
    return torch.tensor(scale, dtype=torch.float64).reciprocal().float().item()


# Attributes that are one scale's; torch's, and the count of the hysteresis.
_OF_A_SCALE = ("_scale", "_growth_tracker", "_init_scale", "_init_growth_tracker", "_overflows")


_Known = dict[int, tuple[weakref.ref[torch.optim.Optimizer], StepReport]]


class _Reports:
    """Last report of each optimizer, as long as the optimizer lives. Copies and pickles begin without any."""

    def __init__(self) -> None:
        self._of: _Known = {}

    def get(self, optimizer: torch.optim.Optimizer) -> StepReport | None:
        known = self._of.get(id(optimizer))
        return known[1] if known is not None and known[0]() is optimizer else None

    def set(self, optimizer: torch.optim.Optimizer, report: StepReport) -> None:
        number = id(optimizer)

        def forget(gone: weakref.ref[torch.optim.Optimizer], of: _Known = self._of) -> None:
            if number in of and of[number][0] is gone:
                del of[number]

        self._of[number] = weakref.ref(optimizer, forget), report

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _Reports, ()


class GradScaler(torch.amp.GradScaler):
    """A drop-in for :class:`torch.amp.GradScaler`: the same methods, errors, state and, on the CPU, bits.

    What it adds: ``unscale_`` and ``step`` take ``max_norm`` and clip all gradients of the optimizer together;
    :meth:`last_report` tells the norm and which parameter first was not finite; ``scale`` never returns fp16, which
    could not hold a scaled loss; and the options that have a name only.

    Args:
        device: of the losses; by default "cuda" where there is one, else "cpu".
        init_scale, growth_factor, backoff_factor, growth_interval, enabled: as torch's.
        min_scale, max_scale: bounds of the scale, of init_scale and update(new_scale), too.
        hysteresis: overflows until the scale backs off. From then on it backs off at each, until growth_interval clean steps in
            a row begin the count anew.
        optimizers: these alone are stepped, and each has a scale of its own, which ``scale(loss, optimizer)`` puts on the loss
            that makes its gradients. By default one scale is everybody's.

    Raises:
        ValueError: bounds that contradict each other; a hysteresis below 1; an optimizer twice; a max_norm below 0; fp16
            gradients in unscale_ (keep master weights in fp32); an optimizer that is not among the optimizers; a state whose
            values no scaler saves.
        TypeError: options of another type.
    """

    def __init__(
        self,
        device: str | None = None,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        min_scale: float = 0.0,
        max_scale: float = math.inf,
        hysteresis: int = 1,
        optimizers: Sequence[torch.optim.Optimizer] = (),
    ) -> None:
        hysteresis = check_size("GradScaler", "hysteresis", hysteresis, 1)
        check_bounds(min_scale, max_scale)
        check_growth(growth_factor, backoff_factor, growth_interval)
        init_scale = min(max(check_scale("init_scale", init_scale), min_scale), max_scale)
        super().__init__(device or default_device(), init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        self._min_scale, self._max_scale = min_scale, max_scale
        self._hysteresis, self._overflows = hysteresis, 0  # amp::LossScale's
        self._optimizers = checked_optimizers(optimizers)
        self._own: list[dict[str, Any]] = [{name: self.__dict__.get(name) for name in _OF_A_SCALE} for _ in self._optimizers]
        self._max_norm: float | None = None  # of the call in progress
        self._clipped = False  # the last gradients were
        self._keeps_scale = False  # the call in progress leaves the gradients as they are
        self._warned = False  # of a scale without a reciprocal
        self._reports = _Reports()

    def last_report(self, optimizer: torch.optim.Optimizer) -> StepReport | None:
        """Report of the gradients that unscale_ or step last saw of this optimizer; None before, and where torch unscaled them."""
        return self._reports.get(optimizer)

    @contextmanager
    def _scale_of(self, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
        """While it lasts, this scaler's scale is the one of that optimizer, if each has its own."""
        if not self._enabled or not self._optimizers:
            yield
            return
        own = next((own for each, own in zip(self._optimizers, self._own, strict=True) if each is optimizer), None)
        if own is None:
            got = "none" if optimizer is None else f"another {type(optimizer).__name__}"
            raise ValueError(f"GradScaler: expected one of its {len(self._own)} optimizers, each of which has a scale, got {got}")
        self.__dict__.update(own)
        try:
            yield
        finally:
            own.update((name, self.__dict__[name]) for name in own)

    def _of_each(self, read: Callable[[], Any]) -> Any:
        """Result of `read` for the scale; for several scales a list, in the order of the optimizers."""
        if not self._optimizers:
            return read()
        values = []
        for optimizer in self._optimizers:
            with self._scale_of(optimizer):
                values.append(read())
        return values

    def get_scale(self, optimizer: torch.optim.Optimizer | None = None) -> float:
        """The scale of an optimizer; without one, where each has its own, the smallest."""
        read = super().get_scale
        if optimizer is None and self._optimizers:
            return float(min(self._of_each(read)))
        with self._scale_of(optimizer):
            return float(read())

    def scale(self, outputs: Any, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """The losses times the scale, in fp32 or fp64; of the optimizer whose gradients they make, where each has its own."""
        with self._scale_of(optimizer):
            return self._scaled(outputs)

    def _scaled(self, outputs: Any) -> Any:
        if self._enabled and isinstance(outputs, torch.Tensor) and outputs.dtype in (torch.float16, torch.bfloat16):
            outputs = outputs.float()
        elif isinstance(outputs, (list, tuple)):
            return type(outputs)(self._scaled(output) for output in outputs)
        return super().scale(outputs)

    def unscale_(self, optimizer: torch.optim.Optimizer, max_norm: float | None = None) -> None:
        """Divides the gradients by the scale, in place, and clips their common norm to `max_norm`, if given."""
        check_norm(max_norm)
        if not self._enabled and max_norm is not None:
            return _clip(optimizer, max_norm)
        self._max_norm = max_norm
        try:
            with self._scale_of(optimizer):
                super().unscale_(optimizer)
        finally:
            self._max_norm = None

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, max_norm: float | None = None, **kwargs: Any) -> Any:
        """Unscales (unless unscale_ did), clips to `max_norm`, if given, and steps unless a gradient is not finite."""
        if max_norm is not None:
            self.unscale_(optimizer, max_norm)
        with self._scale_of(optimizer):
            return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """As torch's. Where each optimizer has a scale, those move whose optimizers were stepped; `new_scale` is for all."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._of_each(lambda: self._set_scale(new_scale))
            return
        self._check_scale_growth_tracker("update")
        found = {
            number: [each.item() for each in state["found_inf_per_device"].values()]
            for number, state in self._per_optimizer_states.items()
        }
        assert any(found.values()), "No inf checks were recorded prior to update."
        if not self._optimizers:
            self._move_scale(found)
        for optimizer in self._optimizers:
            if of_optimizer := found.get(id(optimizer)):
                with self._scale_of(optimizer):
                    self._move_scale({id(optimizer): of_optimizer})
        self._per_optimizer_states.clear()

    def _set_scale(self, new_scale: float | torch.Tensor) -> None:
        if not isinstance(new_scale, torch.Tensor):
            new_scale = check_scale("new_scale", new_scale)
        if self._optimizers and self._scale is None:  # another one's loss has been scaled, perhaps
            self._lazy_init_scale_growth_tracker(torch.device(self._device))
        super().update(new_scale)
        self._check_scale_growth_tracker("update")[0].clamp_(self._min_scale, self._max_scale)

    def _move_scale(self, found: dict[int, list[float]]) -> None:
        """found: what the optimizers of this scale, by their id(), found; above 0 is not finite."""
        now, tracker = self._check_scale_growth_tracker("update")
        scale, clean_steps, self._overflows = torch.ops.plimsoll.next_loss_scale(
            scale=now.item(),
            growth_tracker=tracker.item(),
            overflows=self._overflows,
            found_inf=any(any(each) for each in found.values()),
            growth_factor=self._growth_factor,
            backoff_factor=self._backoff_factor,
            growth_interval=self._growth_interval,
            hysteresis=self._hysteresis,
            min_scale=self._min_scale,
            max_scale=self._max_scale,
            **self._evidence(found),
        )
        now.fill_(scale)
        tracker.fill_(clean_steps)
        self._warn_of_lost_scale(scale)

    def _evidence(self, optimizers: Iterable[int]) -> dict[str, Any]:
        """Facts about the gradients that the rule of the scale is to know, beside whether they are finite."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """torch's keys; with a hysteresis that and ``_overflows``. What is a scale's own is a list where there are several."""
        state = super().state_dict()
        if not self._enabled:
            return state
        state["scale"] = self._of_each(super().get_scale)
        state["_growth_tracker"] = self._of_each(self._get_growth_tracker)
        if self._hysteresis > 1:
            state["hysteresis"] = self._hysteresis
            state["_overflows"] = self._of_each(lambda: self._overflows)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """States of torch's scaler and of scalers without hysteresis load, too, and leave the hysteresis as it is."""
        if not self._enabled or state_dict == {}:
            return super().load_state_dict(state_dict)  # torch's errors
        check_state(state_dict, len(self._optimizers))
        if not self._optimizers:
            self._load_scale(state_dict)
        for place, optimizer in enumerate(self._optimizers):
            of_each = [name for name in ("scale", "_growth_tracker", "_overflows") if name in state_dict]
            own: dict[str, Any] = {name: state_dict[name][place] for name in of_each}
            with self._scale_of(optimizer):
                self._load_scale({**state_dict, **own})
        self._hysteresis = state_dict.get("hysteresis", self._hysteresis)

    def _load_scale(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._overflows = state.get("_overflows", 0)

    def _warn_of_lost_scale(self, scale: float) -> None:
        if self._warned or math.isfinite(_inverse(scale)):
            return
        self._warned = True
        warnings.warn(
            f"GradScaler: the scale has come down to {scale:.3g}, whose reciprocal fp32 does not hold, because "
            "one step after the other had gradients that were not finite; from here on every step is skipped. Gradients "
            "that are not finite at any scale come from the model or its data; min_scale keeps the scale larger",
            stacklevel=4,
        )

    def _check_inf_per_device(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The check for an optimizer that takes the scale off itself, and whose gradients keep it until then."""
        self._keeps_scale = True
        try:
            return super()._check_inf_per_device(optimizer)
        finally:
            self._keeps_scale = False

    def _observe(self, optimizer: torch.optim.Optimizer, report: StepReport, histogram: torch.Tensor) -> None:
        """Hook that sees each optimizer's gradients once between two update(). histogram: amp::GradientHistogram, with the
        scale."""
        self._reports.set(optimizer, report)

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        found, seen = self._unscaled(optimizer, inv_scale, found_inf, allow_fp16, self._max_norm)
        if seen is not None:
            self._observe(optimizer, *seen)
        return found

    def _unscaled(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool,
        max_norm: float | None,
    ) -> tuple[dict[torch.device, torch.Tensor], tuple[StepReport, torch.Tensor] | None]:
        """The result of torch's _unscale_grads_, and the report and histogram of gradients that are not left to torch."""
        devices = {p.grad.device for group in optimizer.param_groups for p in group["params"] if p.grad is not None}
        if devices and not all(map(_unscales_on, {*devices, inv_scale.device})):
            found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
            if max_norm is not None:
                _clip(optimizer, max_norm)
            return found, None
        names, grads = [], []
        for group, parameters in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(parameters["params"]):
                if parameter.grad is None:
                    continue
                name = f"parameter {index} of group {group}"
                if parameter.grad.dtype == torch.float16 and not allow_fp16:
                    raise ValueError(
                        f"Attempting to unscale FP16 gradients: expected fp32 or bf16, got fp16 in {name}; keep master "
                        "weights in fp32 and compute in fp16 under autocast"
                    )
                if parameter.grad.is_sparse and parameter.grad.dtype == torch.float16:
                    # As torch does it: what overflows with the scale on it counts. Entries of others stay apart.
                    parameter.grad = parameter.grad.coalesce()
                names.append(name)
                grads.append(parameter.grad)
        if not grads:
            return {}, None
        scale, _ = self._check_scale_growth_tracker("_unscale_grads_")
        scale, factor = torch.stack([scale, inv_scale]).tolist()  # together: the host waits for a device once
        inverse = _inverse(scale)
        if not math.isfinite(inverse):  # a lost scale
            factor = inverse
        with torch.no_grad():
            norm, clip, count, first, flushed, histogram = torch.ops.plimsoll.unscale_gradients_(
                grads, factor, max_norm=self._max_norm, expect_clip=self._clipped
            )
        self._clipped = clip < 1
        if self._keeps_scale:
            norm *= inverse
        report = StepReport(norm, clip, count, names[first] if count else None, flushed)
        return found_on_host(found_inf, count > 0), (report, histogram)
