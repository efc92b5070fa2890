"""Weight gradients that are added to `weight.main_grad`, a tensor that the caller keeps, and not to `.grad`."""

from __future__ import annotations

from typing import Any

import torch


def main_grad_of(where: str, weight: torch.Tensor) -> torch.Tensor:
    main_grad = getattr(weight, "main_grad", None)
    if not isinstance(main_grad, torch.Tensor):
        raise RuntimeError(
            f"{where}: expected weight.main_grad, a tensor {list(weight.shape)}, with fuse_wgrad_accumulation=True, "
            f"got {main_grad!r}"
        )
    return main_grad


def mark_added(weight: torch.Tensor) -> None:
    """As Megatron's optimizers look for it."""
    if hasattr(weight, "grad_added_to_main_grad"):
        weight.grad_added_to_main_grad = True


def mark_in_backward(output: torch.Tensor, *weights: torch.Tensor) -> None:
    """Marks the weights when the gradient of `output` is there."""
    marked = [weight for weight in weights if hasattr(weight, "grad_added_to_main_grad")]

    def mark(_gradient: torch.Tensor) -> None:
        for weight in marked:
            mark_added(weight)

    if marked and output.requires_grad:
        output.register_hook(mark)


def add_to_main_grad(where: str, weight: torch.Tensor, overwrites: bool) -> torch.Tensor:
    """A weight that becomes part of a larger one: its rows of the gradient go to its own main_grad."""
    if not weight.requires_grad:
        return weight
    watched: torch.Tensor = _AddToMainGrad.apply(weight, where, overwrites)  # type: ignore[no-untyped-call]
    return watched


class _AddToMainGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, where: str, overwrites: bool) -> torch.Tensor:
        ctx.weight, ctx.main_grad, ctx.overwrites = weight, main_grad_of(where, weight), overwrites
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, None, None]:
        if ctx.overwrites:
            ctx.main_grad.copy_(grad)
        else:
            ctx.main_grad.add_(grad)
        mark_added(ctx.weight)
        return None, None, None
