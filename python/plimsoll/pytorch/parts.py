"""Parts of a layer, which it runs without calling the module as long as nobody waits for a call."""

from __future__ import annotations

import torch


def runs_alone(part: torch.nn.Module, kind: type[torch.nn.Module]) -> bool:
    """Whether the operators that a layer has for a `kind` give all that a call of this part would: it is one, and has neither
    hooks of its own (FSDP2 has some, too) nor a forward or a compiled call in the place of its class's. Hooks of all modules do
    not count: reports name layers by one."""
    return (
        type(part).forward is kind.forward
        and not (part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks)
        and "forward" not in part.__dict__
        and part._compiled_call_impl is None
    )


def sum_of(hidden: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
    """The input of a part that is called, where its operator would begin with the addition."""
    return hidden if residual is None else hidden + residual
