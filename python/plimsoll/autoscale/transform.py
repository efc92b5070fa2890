"""autoscale(): a module, or a function, on scaled tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from plimsoll._torch_internals import tree_map
from plimsoll.autoscale import policy as policies
from plimsoll.autoscale.loss_scaling import follow, load_loss_scale, save_loss_scale
from plimsoll.autoscale.packing import load_hook, save_hook
from plimsoll.autoscale.policy import Policy
from plimsoll.autoscale.saving import EnterArguments, save_values
from plimsoll.autoscale.session import new_session, remember, remembered
from plimsoll.autoscale.sharded import enter_when_called
from plimsoll.autoscale.tensors import enter, is_scaled, value

_T = TypeVar("_T", torch.nn.Module, Callable[..., Any])


def _entering(session: Any) -> Callable[[Any], Any]:
    def scaled(x: Any) -> Any:
        is_entered = isinstance(x, torch.Tensor) and x.is_floating_point() and x.layout is torch.strided
        return enter(x, session) if is_entered else x

    return lambda tree: tree_map(scaled, tree)


def _of_unit_size(parameter: torch.Tensor) -> torch.Tensor:
    """A matrix divided by its rms, because its products have a factor for that; a vector stays what it is."""
    size = parameter.square().mean().sqrt()
    return parameter / size if parameter.dim() > 1 and size > 0 else parameter


def _scale_parameters(module: torch.nn.Module, session: Any, prepare: Callable[[torch.Tensor], torch.Tensor]) -> None:
    seen: dict[int, torch.nn.Parameter] = {}  # tied ones stay tied
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is None or not parameter.is_floating_point() or is_scaled(parameter):
                continue
            if getattr(parameter, "_is_sharded", False):  # enter_when_called()
                continue
            if id(parameter) not in seen:
                data = enter(prepare(parameter.detach()), session)
                torch.ops.plimsoll.autoscale_mark_parameter(data)
                seen[id(parameter)] = torch.nn.Parameter(data, requires_grad=parameter.requires_grad)
            part._parameters[name] = seen[id(parameter)]


def gradients_as_values(module: torch.nn.Module) -> torch.nn.Module:
    """The gradients of its parameters as plain FP32 tensors, as DistributedDataParallel needs them to reduce: it shares
    memory with what it is given. Call it before wrapping the module."""
    for parameter in module.parameters():
        if is_scaled(parameter) and parameter.requires_grad:
            parameter.register_hook(value)
    return module


def autoscale(
    module_or_function: _T,
    *,
    policy: str | Policy = policies.autoscale,
    dtype: torch.dtype = torch.float16,
    rounding: str = "remainder",
    matmul_format: str | None = None,
    counts_range: bool = False,
) -> _T:
    """Runs a module or a function on scaled tensors: forward, backward, and the optimizer's step.

    module: the same module, whose parameters are scaled tensors now; make the optimizer afterwards. Buffers, such as
    BatchNorm's statistics, stay plain. Parameters that a FullyShardedDataParallel has stay FP32 shards, and are scaled while a
    module is called. Floating point arguments become scaled, and so are the results; `loss.item()`,
    `loss.backward()` and torch's optimizers are used as ever.
    policy: where scales come from, one of plimsoll.autoscale.policy or its name.
    dtype: of the data, float16, bfloat16 or float32. rounding: of what is written in place, such as an updated weight.
    "remainder": to nearest, and what is cut off a parameter is kept for its next step; "stochastic": up or down by chance;
    "nearest": steps below half a unit of the format are lost.
    matmul_format: of the operands of mm and addmm, as linear layers call them: "e4m3", "e5m2", or "hybrid", which is E5M2 for
    gradients and E4M3 for the rest; "nvfp4" or "mxfp4", codes of four bits as the recipes of these names have them, with scales
    of blocks along the sum (gradients of "mxfp4": E4M3); None: the data as they are.
    counts_range: report() says which share of the elements overflowed or lost bits, which takes several passes over each.
    """
    policy = policies.parse(policy)
    session = new_session(dtype, rounding, policy, counts_range, matmul_format)
    entering = _entering(session)
    if isinstance(module_or_function, torch.nn.Module):
        module = module_or_function
        if remembered(module) is not None:
            raise ValueError(f"autoscale: expected a module that it was not given before, got one, a {type(module).__name__}")
        _scale_parameters(module, session, _of_unit_size if policy.alters_model else lambda parameter: parameter)
        enter_when_called(module, session, policy)
        remember(module, session)
        enter_arguments = EnterArguments(entering)
        if policy.loss_scale is not None:
            follow(module, session, policy.loss_scale, enter_arguments)
        module.register_forward_pre_hook(enter_arguments, with_kwargs=True)
        for save in (save_hook, save_loss_scale):
            module.register_state_dict_post_hook(save)
        for load in (load_hook, load_loss_scale):
            module.register_load_state_dict_pre_hook(load)
        save_values(module)
        return module
    if not callable(module_or_function):
        raise TypeError(f"autoscale: expected a torch.nn.Module or a function, got {type(module_or_function).__name__}")

    @functools.wraps(module_or_function)
    def scaled(*args: Any, **kwargs: Any) -> Any:
        return module_or_function(*entering(args), **entering(kwargs))

    return scaled
