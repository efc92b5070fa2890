"""A torch.nn.Module for each part of a name, around parameters that C++ owns."""

from __future__ import annotations

import torch

from plimsoll._torch_internals import mark_as_parameter


class Part(torch.nn.Module):
    """Module between the dots of a parameter's name. Its parameters are read in C++: a forward hook never runs."""

    def forward(self, *_: object) -> None:
        raise RuntimeError("forward: expected a call of the whole model, got one of a part of it")

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={list(tensor.shape)}" for name, tensor in self._parameters.items() if tensor is not None)


def register(root: torch.nn.Module, parameters: dict[str, torch.Tensor]) -> None:
    """Registers each tensor itself, not a copy or an alias of it, under its dotted name."""
    for name, tensor in parameters.items():
        *path, last = name.split(".")
        module = root
        for part in path:
            if part not in module._modules:
                module.add_module(part, Part())
            module = module.get_submodule(part)
        mark_as_parameter(tensor)
        assert isinstance(tensor, torch.nn.Parameter)
        module.register_parameter(last, tensor)
