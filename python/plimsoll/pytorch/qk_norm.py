"""Norm of each head's query and key before their product."""

from __future__ import annotations

import torch

from plimsoll.pytorch.arguments import check_choice, check_epsilon
from plimsoll.pytorch.norm import LayerNorm, RMSNorm, run_norm

KINDS = (None, "L2Normalization", "RMSNorm", "LayerNorm")


class L2Normalization(torch.nn.Module):
    """x / sqrt(sum(x^2) + eps) over the last dimension: the RMS norm of eps / size with weights 1 / sqrt(size)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.size, self.eps = size, eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., size] -> the same shape."""
        weight = torch.full((self.size,), self.size**-0.5, dtype=torch.float32, device=x.device)
        return run_norm(x, weight, None, "rmsnorm", False, self.eps / self.size)

    def extra_repr(self) -> str:
        return f"{self.size}, eps={self.eps}"


def new_qk_norm(
    where: str,
    kind: str | None,
    *,
    size: int,
    eps: float,
    zero_centered_gamma: bool,
    of_heads_apart: bool,
    params_dtype: torch.dtype | None,
    device: torch.device | str | None,
) -> torch.nn.Module | None:
    """A norm over `size`, kv_channels of a head; None for kind None. of_heads_apart: ranks have different heads."""
    check_choice(where, "qk_norm_type", kind, KINDS)
    check_epsilon(where, "qk_norm_eps", eps)
    if kind is None:
        return None
    if kind == "L2Normalization":
        return L2Normalization(size, eps)
    norm = RMSNorm if kind == "RMSNorm" else LayerNorm
    return norm(
        size,
        eps,
        sequence_parallel=True if of_heads_apart else None,  # the mark of gradients that the caller sums over ranks
        params_dtype=params_dtype,
        zero_centered_gamma=zero_centered_gamma,
        device=device,
    )
