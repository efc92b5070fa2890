"""Sequences one after the other in one tensor: the layout "thd"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Packing:
    """Places of sequences among `tokens`. cu_seqlens int32 or int64 [sequences + 1]: 0 and the sums of their lengths;
    padded: where each begins, if tokens that belong to none lie between them."""

    def __init__(self, name: str, cu_seqlens: Any, padded: Any, tokens: int) -> None:
        sums = _checked(name, cu_seqlens)
        starts = sums if padded is None else _checked(f"{name}_padded", padded)
        self.sizes: list[int] = []  # of sequences and of the gaps behind them, in turn; before them a gap of 0
        for first, last, start, after in zip(sums, sums[1:], starts, [*starts[1:-1], tokens], strict=False):
            self.sizes += [last - first, after - start - (last - first)]
        if len(starts) != len(sums) or min(self.sizes, default=0) < 0 or sum(self.sizes) != tokens:
            raise ValueError(f"DotProductAttention: expected {name} within {tokens} tokens, got {sums} at {starts}")

    @property
    def sequences(self) -> int:
        return len(self.sizes) // 2

    def split(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The sequences of x [tokens, ...]."""
        return list(x.split(self.sizes)[::2])

    def join(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """[tokens, ...] of the sequences; 0 between them."""
        gaps = [parts[0].new_zeros(size, *parts[0].shape[1:]) for size in self.sizes[1::2]]
        return torch.cat([piece for pair in zip(parts, gaps, strict=True) for piece in pair])


def _checked(name: str, sums: Any) -> list[int]:
    if not isinstance(sums, torch.Tensor) or sums.dim() != 1 or sums.dtype not in (torch.int32, torch.int64):
        got = f"{list(sums.shape)} of {sums.dtype}" if isinstance(sums, torch.Tensor) else repr(sums)
        raise ValueError(f"DotProductAttention: expected {name} [sequences + 1] of int32 with qkv_format 'thd', got {got}")
    values: list[int] = sums.tolist()
    if len(values) < 2 or values[0] != 0 or sorted(values) != values:
        raise ValueError(f"DotProductAttention: expected {name} that starts at 0 and never falls, got {values}")
    return values


def attend_each(
    attend: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    query: tuple[torch.Tensor, Packing],
    key: torch.Tensor,
    value: torch.Tensor,
    keys: Packing,
) -> torch.Tensor:
    """[tokens, heads, channels] of attend(query, key, value) on each sequence, [1, heads, tokens, channels]."""
    tokens, queries = query
    if queries.sequences != keys.sequences:
        raise ValueError(
            f"DotProductAttention: expected as many sequences of keys as of queries, {queries.sequences}, got {keys.sequences}"
        )
    parts = zip(queries.split(tokens), keys.split(key), keys.split(value), strict=True)
    results = [attend(*(part.transpose(0, 1)[None] for part in one)) for one in parts]
    return queries.join([result[0].transpose(0, 1) for result in results])
