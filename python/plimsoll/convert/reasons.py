"""Reasons for which a module stays as it is."""

from __future__ import annotations

import torch
from torch.nn.utils import parametrize

from plimsoll.convert.linear import is_conv1d
from plimsoll.convert.parents import bypassed_children
from plimsoll.pytorch.arguments import FORMATS


class Model:
    """A model as a whole: who holds a parameter, and who is whose child."""

    def __init__(self, root: torch.nn.Module) -> None:
        self.modules = list(root.named_modules())
        self._holders: dict[int, list[str]] = {}
        self._parents: dict[int, list[tuple[torch.nn.Module, str]]] = {}
        for path, module in self.modules:
            for name, parameter in module._parameters.items():
                self._holders.setdefault(id(parameter), []).append(f"{path}.{name}" if path else name)
            for name, child in module._modules.items():
                self._parents.setdefault(id(child), []).append((module, name))

    def parents(self, module: torch.nn.Module) -> list[tuple[torch.nn.Module, str]]:
        return self._parents.get(id(module), [])

    def other_holder(self, path: str, name: str, parameter: torch.nn.Parameter) -> str | None:
        own = f"{path}.{name}" if path else name
        return next((holder for holder in self._holders[id(parameter)] if holder != own), None)


def why_not_parameter(module: torch.nn.Module, name: str) -> str | None:
    parameter = module._parameters.get(name)
    if parameter is None:
        return f"its {name} is computed from other parameters"
    if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
        return "it has no sizes before its first call"
    if type(parameter) is not torch.nn.Parameter:
        return f"its {name} is a {type(parameter).__name__}"
    if parameter.layout != torch.strided:
        return f"its {name} is sparse ({parameter.layout})"
    if parameter.dtype not in FORMATS:
        return f"its {name} is {parameter.dtype}"
    if parameter.device.type not in ("cpu", "meta"):
        return f"its {name} is on {parameter.device}"
    return None


def _why_not_parameters(module: torch.nn.Module) -> str | None:
    names = ["weight"] if getattr(module, "bias", None) is None else ["weight", "bias"]
    for name in names:
        if (reason := why_not_parameter(module, name)) is not None:
            return reason
    return None


def _why_not_class(module: torch.nn.Module, exact: type[torch.nn.Module]) -> str | None:
    if parametrize.is_parametrized(module):
        parametrized = module.parametrizations
        assert isinstance(parametrized, torch.nn.ModuleDict)
        return f"its {', '.join(parametrized)} is parametrized"
    if any(isinstance(p, torch.nn.parameter.UninitializedParameter) for p in module._parameters.values()):
        return "it has no sizes before its first call"
    if type(module) is not exact:
        return f"it is a subclass of {exact.__name__}, whose forward may differ"
    if "forward" in module.__dict__:
        return "its forward has been replaced"
    return None


def why_not_linear(model: Model, path: str, module: torch.nn.Module, shared_weights: bool) -> str | None:
    """Reason to keep a torch.nn.Linear or a Conv1D; None: it is converted."""
    exact = type(module) if is_conv1d(module) else torch.nn.Linear
    reason = _why_not_class(module, exact) or _why_not_parameters(module)
    if reason is not None:
        return reason
    for parent, name in model.parents(module):
        if name in bypassed_children(type(parent)):  # type: ignore[arg-type]  # mypy: a type has no hash
            return f"{type(parent).__name__} reads its weight and never calls it"
    weight = module.get_parameter("weight")
    if not shared_weights and (other := model.other_holder(path, "weight", weight)) is not None:
        return f"its weight is {other}, too"
    return None


def why_not_attention(module: torch.nn.MultiheadAttention) -> str | None:
    if (reason := _why_not_class(module, torch.nn.MultiheadAttention)) is not None:
        return reason
    if module.bias_k is not None or module.add_zero_attn:
        return f"it has {'bias_k' if module.bias_k is not None else 'add_zero_attn'}"
    for name, parameter in module._parameters.items():
        if parameter is not None and (reason := why_not_parameter(module, name)) is not None:
            return reason
    if type(module.out_proj) is not torch.nn.modules.linear.NonDynamicallyQuantizableLinear:
        return f"its out_proj is a {type(module.out_proj).__name__}"
    reason = _why_not_parameters(module.out_proj)
    return None if reason is None else f"out_proj: {reason}"
