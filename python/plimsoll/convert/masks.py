"""Masks as torch.nn.MultiheadAttention takes them."""

from __future__ import annotations

import torch


class Masks:
    """Masks of scores [batch, heads, queries, keys]: hidden (bool, True = masked) and added, either of them None.

    keys [batch, keys] and scores [queries, keys] or [batch * heads, queries, keys] are bool, or floating point that is
    added, where -inf hides."""

    def __init__(self, batch: int, heads: int, keys: torch.Tensor | None, scores: torch.Tensor | None) -> None:
        self.hidden: torch.Tensor | None = None
        self.added: torch.Tensor | None = None
        if keys is not None:
            self._add(keys.reshape(batch, 1, 1, -1))
        if scores is not None:
            self._add(scores if scores.dim() == 2 else scores.unflatten(0, (batch, heads)))

    def _add(self, mask: torch.Tensor) -> None:
        mask = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
        hidden = mask if mask.dtype == torch.bool else mask == -torch.inf
        self.hidden = hidden if self.hidden is None else self.hidden | hidden
        if mask.dtype != torch.bool:
            added = mask.float().masked_fill(hidden, 0.0)
            self.added = added if self.added is None else self.added + added

    def weights(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """softmax of the scores, [batch, heads, queries, keys]."""
        scores = query @ key.transpose(2, 3) * query.shape[3] ** -0.5
        if self.added is not None:
            scores = scores + self.added.to(scores.dtype)
        if self.hidden is not None:
            scores = scores.masked_fill(self.hidden, -torch.inf)
        return torch.softmax(scores, 3)
