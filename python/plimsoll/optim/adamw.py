"""torch.optim.AdamW on one pass over each parameter, with FP32 masters of narrow parameters and narrow moments."""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

MOMENT_DTYPES = (torch.float32, torch.bfloat16)
NARROW_DTYPES = (torch.bfloat16, torch.float16)


class AdamW(Optimizer):
    """AdamW with the arguments and the rule of :class:`torch.optim.AdamW`.

    Parameters are contiguous CPU tensors of float32, bfloat16 or float16. One of the latter two has an FP32 master in the
    state, ``state[parameter]["master"]``, which takes the update; the parameter is its nearest value. Whoever writes the
    parameter itself between steps writes the master, too. Every gradient that is there is taken as it is: wrap
    :class:`plimsoll.amp.GradScaler` around it for a loss scale.

    Args:
        params, lr, betas, eps, weight_decay: as torch's.
        amsgrad, maximize, capturable, differentiable: False only.
        foreach, fused: taken and not needed; each step is one pass over each parameter.
        moment_dtype: of ``exp_avg`` and ``exp_avg_sq``. bfloat16 halves them and rounds stochastically, because to nearest
            a second moment that moves by a thousandth would stand still.
        seed: of that rounding. The same seed gives the same bits for any number of threads.

    Raises:
        ValueError: an argument out of range, or one that is not supported.
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
        moment_dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        refused = {"amsgrad": amsgrad, "maximize": maximize, "capturable": capturable, "differentiable": differentiable}
        for name, value in refused.items():
            if value:
                raise ValueError(f"AdamW: expected {name}=False, got {value}")
        self._seen_versions: dict[torch.Tensor, int] = {}  # of narrow parameters, when their masters were last in step
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "moment_dtype": moment_dtype,
            "seed": seed,
        }
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._seen_versions = {}
        for group in self.param_groups:  # those of torch.optim.AdamW have no dtype of moments
            group.setdefault("moment_dtype", self.defaults["moment_dtype"])
            group.setdefault("seed", self.defaults["seed"])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            _check_options(group)
            for place, parameter in enumerate(group["params"]):
                _check_parameter(parameter, f"parameter {place} of group {len(self.param_groups) - 1}")
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
        places = count()  # of each parameter among all: its stochastic rounding is drawn by it
        for group in self.param_groups:
            for parameter, place in zip(group["params"], places, strict=False):
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group, place)
        return loss

    def _update(self, parameter: torch.Tensor, grad: torch.Tensor, group: dict[str, Any], place: int) -> None:
        if grad.is_sparse:
            raise RuntimeError("AdamW: expected dense gradients, got a sparse one")
        state = self._state_of(parameter, group["moment_dtype"])
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
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            master=master,
            seed=group["seed"],
            index=place,
        )
        if master is not None:
            self._seen_versions[parameter] = parameter._version

    def _state_of(self, parameter: torch.Tensor, moment_dtype: torch.dtype) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter, dtype=moment_dtype)
            state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=moment_dtype)
            if parameter.dtype in NARROW_DTYPES:
                state["master"] = parameter.detach().float()
                self._seen_versions[parameter] = parameter._version
        return state

    def _refresh_master(self, parameter: torch.Tensor, master: torch.Tensor) -> None:
        """Somebody else wrote the parameter: the master follows, unless it already rounds to what was written."""
        if self._seen_versions.get(parameter) == parameter._version:
            return
        if not torch.equal(master.to(parameter.dtype), parameter):
            master.copy_(parameter)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's; states keep their own dtypes instead of the parameter's, and torch.optim.AdamW's can be loaded.

        A narrow parameter without a master in the state is its own.
        """
        super().load_state_dict(state_dict)
        saved = (key for group in state_dict["param_groups"] for key in group["params"])
        mine = ((parameter, group["moment_dtype"]) for group in self.param_groups for parameter in group["params"])
        for key, (parameter, moment_dtype) in zip(saved, mine, strict=True):
            given = state_dict["state"].get(key)
            if not given:
                continue
            state = self.state[parameter]
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = given[name].detach().to(moment_dtype).contiguous().clone()
            if parameter.dtype in NARROW_DTYPES:
                state["master"] = given.get("master", parameter).detach().float().contiguous().clone()


def _check_options(group: dict[str, Any]) -> None:
    if group["moment_dtype"] not in MOMENT_DTYPES:
        raise ValueError(f"AdamW: expected moment_dtype float32 or bfloat16, got {group['moment_dtype']}")
    for name in ("lr", "eps", "weight_decay"):
        if not float(group[name]) >= 0:
            raise ValueError(f"AdamW: expected {name} >= 0, got {group[name]}")
    if len(group["betas"]) != 2 or not all(0 <= beta < 1 for beta in group["betas"]):
        raise ValueError(f"AdamW: expected two betas in [0, 1), got {group['betas']}")


def _check_parameter(parameter: torch.Tensor, place: str) -> None:
    wanted = "a contiguous CPU tensor of float32, bfloat16 or float16"
    if parameter.device.type != "cpu" or parameter.dtype not in (torch.float32, *NARROW_DTYPES) or not parameter.is_contiguous():
        got = f"{parameter.dtype} {list(parameter.shape)} with strides {parameter.stride()} on {parameter.device}"
        raise TypeError(f"AdamW: expected {place} to be {wanted}, got {got}")
