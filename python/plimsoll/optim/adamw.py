"""torch.optim.AdamW on one pass over each parameter, with masters of narrow parameters and moments in fewer bits."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from plimsoll.optim.averaged_gradients import averaging_module_of

# Dtypes of exp_avg and exp_avg_sq.
MOMENT_DTYPES = {
    "fp32": (torch.float32, torch.float32),
    "bf16": (torch.bfloat16, torch.bfloat16),
    "8bit": (torch.int8, torch.uint8),
}
MASTERS = ("fp32", "split", "none")
NARROW_DTYPES = (torch.bfloat16, torch.float16)
STATE_GROUP = 32  # elements that share a scale of 8-bit moments
REFUSED = ("amsgrad", "maximize", "capturable", "differentiable")  # torch's options that are False only
# Names of 8-bit moments in state dicts: torch.optim.AdamW would take codes under the names of values for values.
CODES = {"exp_avg": "exp_avg_codes", "exp_avg_sq": "exp_avg_sq_codes"}


class AdamW(Optimizer):
    """AdamW with the arguments and the rule of :class:`torch.optim.AdamW`.

    Parameters are contiguous tensors of float32, bfloat16 or float16 on the CPU, or on a CUDA device, where optimizer_state and
    masters are "fp32". One of the latter two has by default an FP32 master
    in the state, ``state[parameter]["master"]``, which takes the update; the parameter is its nearest value. Whoever writes
    the parameter itself between steps writes the master, too, where torch counts the write: ``copy_()`` and ``fill_()`` under
    ``torch.no_grad()`` and ``load_state_dict()`` of a module are seen. What goes through ``parameter.data`` or NumPy is not, and
    is lost at the next step. Every gradient that is there is taken as it is: wrap
    :class:`plimsoll.amp.GradScaler` around it for a loss scale.

    Args:
        params, lr, betas, eps, weight_decay: as torch's.
        amsgrad, maximize, capturable, differentiable: False only.
        foreach, fused: taken and not needed; each step is one pass over each parameter.
        optimizer_state: how ``exp_avg`` and ``exp_avg_sq`` are kept. ``"fp32"``; ``"bf16"``, rounded stochastically, because
            to nearest a second moment that moves by a thousandth would stand still; ``"8bit"``, int8 and uint8 with a scale
            in float16 for 32 elements (``exp_avg_scale``, ``exp_avg_sq_scale``), rounded stochastically, too.
        masters: what stands for a bfloat16 parameter beside it. ``"fp32"``; ``"split"``, an int8 ``correction`` of half its
            last place; ``"none"``, nothing: the update is rounded stochastically. float16 parameters have FP32 masters only.
        seed: of the stochastic rounding. The same seed gives the same bits for any number of threads.

    Raises:
        ValueError: an argument out of range, or one that is not supported; also from :meth:`step`, for what was written into
            ``param_groups`` since.
        TypeError: a parameter of another kind, named by group and place.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        optimizer_state: str = "fp32",
        masters: str = "fp32",
        seed: int = 0,
    ) -> None:
        _check_refused({"amsgrad": amsgrad, "maximize": maximize, "capturable": capturable, "differentiable": differentiable})
        self._seen_versions: dict[torch.Tensor, int] = {}  # of narrow parameters, when their masters were last in step
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "optimizer_state": optimizer_state,
            "masters": masters,
            "seed": seed,
        }
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._seen_versions = {}
        for group in self.param_groups:  # those of torch.optim.AdamW have none of these
            for name in ("optimizer_state", "masters", "seed"):
                group.setdefault(name, self.defaults[name])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            _check_options(group)
            for place, parameter in enumerate(group["params"]):
                _check_parameter(parameter, f"parameter {place} of group {len(self.param_groups) - 1}", group)
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient; returns the closure's loss, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_groups()
        for parameter, group, place in self._places():
            if parameter.grad is not None:
                self._update(parameter, parameter.grad, group, place)
        return loss

    @contextmanager
    def release_gradients(self, *, max_norm: float = math.inf, inv_loss_scale: float = 1.0) -> Iterator[None]:
        """Inside, ``backward()`` updates a parameter when its gradient is complete, and frees the gradient.

        The bits are those of :meth:`step` after it. Around the last ``backward()`` of a step, and that alone: gradients that
        earlier ones added up are in it, those of parameters that it does not reach take their step at the end, and after it
        no gradient is there to clip or to unscale. The learning rate is set before.

        Where ranks average gradients, that must come before the update. Those of plimsoll.shard's wrappers are taken when they
        are averaged, at the end. Parameters of a DistributedDataParallel are refused, and a gradient that is there again at the
        end, as other reducers leave it, is an error; a reducer that writes no gradient back is not seen.

        Raises:
            ValueError: clipping to ``max_norm``, or a loss scale, which may skip: both need all gradients at once.
            RuntimeError: a parameter of a module that averages gradients; a second gradient of a parameter, as of a second
                ``backward()``.
        """
        if max_norm != math.inf or inv_loss_scale != 1:
            raise ValueError(
                "AdamW: expected gradients that are released in backward without clipping by their whole norm and without a"
                f" loss scale, which may skip a step, got max_norm {max_norm} and inv_loss_scale {inv_loss_scale}"
            )
        self._check_groups()
        module = averaging_module_of([parameter for parameter, _, _ in self._places()])
        if module is not None:
            raise RuntimeError(
                f"AdamW: expected gradients that no other module averages, got parameters of a {type(module).__name__}, which"
                " averages them after they would be released; call step() after backward()"
            )
        released: set[torch.Tensor] = set()
        with ExitStack() as hooks:
            for parameter, group, place in self._places():
                if parameter.requires_grad:
                    hook = partial(self._update_and_free, group=group, place=place, released=released)
                    hooks.callback(parameter.register_post_accumulate_grad_hook(hook).remove)
            yield
        self._finish_release(released)

    @torch.no_grad()
    def _update_and_free(self, parameter: torch.Tensor, group: dict[str, Any], place: int, released: set[torch.Tensor]) -> None:
        if parameter.grad is None:
            return
        if parameter in released:
            raise RuntimeError(
                "AdamW: expected one backward() inside release_gradients(), which adds to each gradient once, got a second"
                f" gradient of parameter {place}, of shape {list(parameter.shape)}; call earlier ones before it"
            )
        self._update(parameter, parameter.grad, group, place)
        parameter.grad = None
        released.add(parameter)

    @torch.no_grad()
    def _finish_release(self, released: set[torch.Tensor]) -> None:
        """The step of parameters that the backward pass did not reach, and that have a gradient of an earlier one."""
        kept = [each for each in self._places() if each[0].grad is not None]
        for parameter, _, place in kept:
            if parameter in released:
                raise RuntimeError(
                    f"AdamW: expected gradients that are complete in backward, got one of parameter {place}, of shape"
                    f" {list(parameter.shape)}, that was written again after its update, as modules do that average gradients"
                    " over ranks; call step() after backward() there"
                )
        for parameter, group, place in kept:
            self._update_and_free(parameter, group, place, released)

    def _places(self) -> Iterator[tuple[torch.Tensor, dict[str, Any], int]]:
        """Each parameter with its group and its place among all, by which its stochastic rounding is drawn."""
        places = count()
        for group in self.param_groups:
            for parameter in group["params"]:
                yield parameter, group, next(places)

    def _check_groups(self) -> None:
        """Schedulers, load_state_dict() and users write into groups."""
        for group in self.param_groups:
            _check_options(group)

    def _update(self, parameter: torch.Tensor, grad: torch.Tensor, group: dict[str, Any], place: int) -> None:
        if grad.is_sparse:
            raise RuntimeError("AdamW: expected dense gradients, got a sparse one")
        state = self._state_of(parameter, group)
        master = state.get("master")
        if master is not None:
            self._refresh_master(parameter, master)
        state["step"] += 1
        torch.ops.plimsoll.adamw_(
            parameter,
            grad.contiguous(),
            state["exp_avg"],
            state["exp_avg_sq"],
            step=int(state["step"]),
            lr=float(group["lr"]),
            beta1=float(group["betas"][0]),
            beta2=float(group["betas"][1]),
            eps=float(group["eps"]),
            weight_decay=float(group["weight_decay"]),
            master=master,
            correction=state.get("correction"),
            scale1=state.get("exp_avg_scale"),
            scale2=state.get("exp_avg_sq_scale"),
            seed=group["seed"],
            index=place,
        )
        if master is not None:
            self._seen_versions[parameter] = parameter._version

    def _state_of(self, parameter: torch.Tensor, group: dict[str, Any]) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            for name, dtype in zip(("exp_avg", "exp_avg_sq"), MOMENT_DTYPES[group["optimizer_state"]], strict=True):
                state[name] = torch.zeros_like(parameter, dtype=dtype)
                if group["optimizer_state"] == "8bit":
                    state[name + "_scale"] = torch.zeros(-(-parameter.numel() // STATE_GROUP), dtype=torch.float16)
            if _has_master(parameter, group):
                state["master"] = parameter.detach().float()
                self._seen_versions[parameter] = parameter._version
            elif _is_split(parameter, group):
                state["correction"] = torch.zeros_like(parameter, dtype=torch.int8)
        return state

    def _refresh_master(self, parameter: torch.Tensor, master: torch.Tensor) -> None:
        """Somebody else wrote the parameter: the master follows, unless it already rounds to what was written."""
        if self._seen_versions.get(parameter) == parameter._version:
            return
        if not torch.equal(master.to(parameter.dtype), parameter):
            master.copy_(parameter)

    def state_dict(self) -> dict[str, Any]:
        """As torch's. 8-bit moments are ``exp_avg_codes`` and ``exp_avg_sq_codes``, which torch.optim.AdamW does not take for
        values."""
        saved = super().state_dict()
        return {**saved, "state": {key: _renamed(state) for key, state in saved["state"].items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's; torch.optim.AdamW's can be loaded. States are kept as this optimizer keeps them.

        Those of another ``optimizer_state`` or other ``masters`` are converted, to nearest. A narrow parameter without a
        master in the state is its own: load the parameters first.

        Raises:
            ValueError: options that this optimizer refuses, or a state that lacks a member or has one of another shape. The
                optimizer is then as it was.
        """
        kinds = [(group["optimizer_state"], group["masters"]) for group in self.param_groups]
        for group in state_dict["param_groups"]:
            _check_options({**self.defaults, **group})
        states = {key: _with_values_names(state) for key, state in state_dict["state"].items()}
        saved = [key for group in state_dict["param_groups"] for key in group["params"]]
        for key, (parameter, _, place) in zip(saved, self._places(), strict=False):  # torch's error where one is longer
            if states.get(key):
                _check_state(states[key], parameter, place)
        super().load_state_dict({**state_dict, "state": states})
        for group, (optimizer_state, masters) in zip(self.param_groups, kinds, strict=True):
            group["optimizer_state"], group["masters"] = optimizer_state, masters
        for key, (parameter, group, _) in zip(saved, self._places(), strict=True):
            given = states.get(key)
            if given:
                step = torch.as_tensor(self.state[parameter]["step"]).to("cpu", copy=True)  # torch's is the other optimizer's own
                self.state[parameter] = {"step": step, **_converted(given, parameter, group)}


def _renamed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {CODES.get(name, name) if name + "_scale" in state else name: value for name, value in state.items()}


def _with_values_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inverse. States of earlier versions have these names for codes, too."""
    names = {codes: name for name, codes in CODES.items()}
    return {names.get(name, name): value for name, value in state.items()}


def _check_state(state: dict[str, Any], parameter: torch.Tensor, place: int) -> None:
    whole = f"AdamW: expected the state of parameter {place}, of shape {list(parameter.shape)}, "
    for name in ("step", *CODES):
        if name not in state:
            raise ValueError(f"{whole}to have {name}, got {', '.join(state)}")
    for name in (*CODES, "master", "correction"):
        if name in state and state[name].shape != parameter.shape:
            raise ValueError(f"{whole}to have {name} of that shape, got {list(state[name].shape)}")
    for name in CODES:
        if state[name].dtype not in (torch.int8, torch.uint8):
            continue
        groups = -(-parameter.numel() // STATE_GROUP)
        scale = state.get(name + "_scale")
        if scale is None or scale.shape != (groups,):
            got = "none" if scale is None else f"one of shape {list(scale.shape)}"
            raise ValueError(f"{whole}to have {name}_scale of shape {[groups]} beside 8-bit {CODES[name]}, got {got}")


def _has_master(parameter: torch.Tensor, group: dict[str, Any]) -> bool:
    return parameter.dtype in NARROW_DTYPES and group["masters"] == "fp32"


def _is_split(parameter: torch.Tensor, group: dict[str, Any]) -> bool:
    return parameter.dtype in NARROW_DTYPES and group["masters"] == "split"


def _converted(given: dict[str, torch.Tensor], parameter: torch.Tensor, group: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Moments and master of a parameter as its group keeps them, on its device. The CPU converts them."""
    ops, own, device = torch.ops.plimsoll, {}, parameter.device
    for name, dtype in zip(("exp_avg", "exp_avg_sq"), MOMENT_DTYPES[group["optimizer_state"]], strict=True):
        values, scale = given[name].detach().contiguous(), given.get(name + "_scale")
        if values.dtype != dtype:
            values, scale = values.cpu(), None if scale is None else scale.cpu()
            is_kept = values.dtype in (torch.int8, torch.uint8, torch.float32, torch.bfloat16)
            wide = ops.adamw_wide_moment(values if is_kept else values.float(), scale=scale)
            values, scale = (
                ops.adamw_codes_of_moment(wide, is_second=name == "exp_avg_sq")
                if group["optimizer_state"] == "8bit"
                else (wide.to(dtype), None)
            )
        own[name] = values.to(device, copy=True)
        if scale is not None:
            own[name + "_scale"] = scale.detach().to(device, copy=True)
    if _has_master(parameter, group):
        own["master"] = _master_of(given, parameter)
    elif _is_split(parameter, group):
        correction = given.get("correction")
        if correction is None:
            correction = ops.adamw_correction_of(_master_of(given, parameter).cpu())
        own["correction"] = correction.detach().contiguous().to(device, copy=True)
    return own


def _master_of(given: dict[str, torch.Tensor], parameter: torch.Tensor) -> torch.Tensor:
    if "master" in given:
        return given["master"].detach().float().contiguous().to(parameter.device, copy=True)
    if "correction" in given and parameter.dtype == torch.bfloat16:
        correction = given["correction"].detach().cpu().contiguous()
        joined: torch.Tensor = torch.ops.plimsoll.adamw_join_weight(parameter.detach().cpu(), correction)
        return joined.to(parameter.device)
    return parameter.detach().float()


def _check_options(group: dict[str, Any]) -> None:
    if group["optimizer_state"] not in MOMENT_DTYPES:
        raise ValueError(f"AdamW: expected optimizer_state {', '.join(MOMENT_DTYPES)}, got {group['optimizer_state']}")
    if group["masters"] not in MASTERS:
        raise ValueError(f"AdamW: expected masters {', '.join(MASTERS)}, got {group['masters']}")
    for name in ("lr", "eps", "weight_decay"):
        if not _is_number(group[name]) or not 0 <= float(group[name]) < math.inf:
            raise ValueError(f"AdamW: expected {name} to be finite and >= 0, got {group[name]!r}")
    betas = group["betas"]
    if len(betas) != 2 or not all(_is_number(beta) and 0 <= beta < 1 for beta in betas):
        raise ValueError(f"AdamW: expected two betas in [0, 1), got {betas}")
    if type(group["seed"]) is not int or not 0 <= group["seed"] < 2**63:
        raise ValueError(f"AdamW: expected seed to be an int in [0, 2^63), got {group['seed']!r}")
    _check_refused(group)


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) or (isinstance(value, torch.Tensor) and value.numel() == 1)


def _check_refused(options: dict[str, Any]) -> None:
    for name in REFUSED:
        if options.get(name):
            raise ValueError(f"AdamW: expected {name}=False, got {options[name]}")


def _check_parameter(parameter: torch.Tensor, place: str, group: dict[str, Any]) -> None:
    masters = group["masters"]
    distributed = sys.modules.get("torch.distributed.tensor")  # where there are any, it is imported
    if distributed is not None and isinstance(parameter, distributed.DTensor):
        raise TypeError(
            f"AdamW: expected {place} to be a plain tensor, got a DTensor, as torch's fully_shard makes them: use torch.optim.AdamW"
            " there, or plimsoll.shard.FullyShardedDataParallel"
        )
    wanted = "a contiguous tensor of float32, bfloat16 or float16 on the CPU or a CUDA device"
    is_float = parameter.dtype in (torch.float32, *NARROW_DTYPES)
    if parameter.device.type not in ("cpu", "cuda") or not is_float or not parameter.is_contiguous():
        got = f"{parameter.dtype} {list(parameter.shape)} with strides {parameter.stride()} on {parameter.device}"
        raise TypeError(f"AdamW: expected {place} to be {wanted}, got {got}")
    if parameter.device.type == "cuda" and (group["optimizer_state"], masters) != ("fp32", "fp32"):
        got = f"{group['optimizer_state']!r} and {masters!r}"
        raise TypeError(f"AdamW: expected optimizer_state and masters 'fp32' for {place} on {parameter.device}, got {got}")
    if parameter.dtype == torch.float16 and masters != "fp32":
        raise TypeError(f"AdamW: expected {place} to be of float32 or bfloat16 with masters={masters!r}, got float16")
