"""Rotary positions of queries and keys. Source: Su et al., "RoFormer", 2021."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from plimsoll.pytorch.arguments import check_choice, check_positive, check_rest, check_size, check_tensor

_rotary = torch.ops.plimsoll.rotary.default

# A tensor for queries and keys alike, or one for each.
RotaryEmbedding = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class RotaryPositionEmbedding(torch.nn.Module):
    """Angles of positions: position / rotary_base^(2i / dim) for the pair i of a head's first dim channels.

    rotary_percent: of `dim` that is turned. seq_len_interpolation_factor: positions are divided by it; with
    pretrained_max_position_embeddings, of sequences longer than that many times the factor, by as much as keeps them
    inside. interleaved: pairs are channels 2i and 2i + 1, not i and i + dim / 2. The buffer inv_freq stays FP32 where the
    module takes another dtype: an angle is off by the position times the rounding of its frequency.
    """

    inv_freq: torch.Tensor

    def __init__(
        self,
        dim: int,
        rotary_percent: float = 1.0,
        seq_len_interpolation_factor: float | None = None,
        pretrained_max_position_embeddings: int | None = None,
        rotary_base: float = 10000.0,
        interleaved: bool = False,
    ) -> None:
        super().__init__()
        check_size("RotaryPositionEmbedding", "dim", dim, 2)
        if not 0 < rotary_percent <= 1:
            raise ValueError(f"RotaryPositionEmbedding: expected rotary_percent in (0, 1], got {rotary_percent}")
        rotated = int(dim * rotary_percent)
        if rotated < 2 or rotated % 2:
            raise ValueError(f"RotaryPositionEmbedding: expected an even number of channels to turn, got {rotated} of {dim}")
        check_positive("RotaryPositionEmbedding", "rotary_base", rotary_base)
        if seq_len_interpolation_factor is not None:
            check_positive("RotaryPositionEmbedding", "seq_len_interpolation_factor", seq_len_interpolation_factor)
        if pretrained_max_position_embeddings is not None:
            check_size("RotaryPositionEmbedding", "pretrained_max_position_embeddings", pretrained_max_position_embeddings, 1)
        exponents = torch.arange(0, rotated, 2, dtype=torch.float32) / rotated
        self.register_buffer("inv_freq", 1.0 / rotary_base**exponents)
        self.seq_len_interpolation_factor = seq_len_interpolation_factor
        self.pretrained_max_position_embeddings = pretrained_max_position_embeddings
        self.interleaved = interleaved

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> RotaryPositionEmbedding:
        before = self.inv_freq
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.inv_freq.dtype != before.dtype:
            self.inv_freq = before.to(self.inv_freq.device)
        return self

    def _interpolated(self, positions: torch.Tensor, length: int) -> torch.Tensor:
        factor, pretrained = self.seq_len_interpolation_factor, self.pretrained_max_position_embeddings
        if factor is None:
            return positions
        if pretrained is not None and length > pretrained * factor:
            return positions * (pretrained / length)
        return positions / factor

    def forward(self, max_seq_len: int, offset: int = 0) -> torch.Tensor:
        """Angles [max_seq_len, 1, 1, dim], fp32, of positions offset, offset + 1, ..."""
        positions = torch.arange(max_seq_len, dtype=torch.float32, device=self.inv_freq.device) + offset
        angles = torch.outer(self._interpolated(positions, max_seq_len), self.inv_freq.float())
        pairs = angles.repeat_interleave(2, 1) if self.interleaved else torch.cat((angles, angles), 1)
        return pairs[:, None, None, :]


def _rows(angles: torch.Tensor) -> torch.Tensor:
    """[positions, rotated] of [positions, 1, 1, rotated]."""
    if angles.dim() != 4 or angles.shape[1:3] != (1, 1):
        raise ValueError(f"rotary_pos_emb: expected angles [positions, 1, 1, channels], got {list(angles.shape)}")
    return angles[:, 0, 0].float()


def _packed_positions(cu_seqlens: torch.Tensor, padded: torch.Tensor | None, tokens: int) -> torch.Tensor:
    """[tokens]: the position of each in its sequence; 0 for those that belong to none. padded: where each begins."""
    starts = (cu_seqlens if padded is None else padded).long()
    lengths = torch.nn.functional.pad(cu_seqlens.long().diff(), (0, 1))
    token = torch.arange(tokens, device=starts.device)
    sequence = torch.searchsorted(starts, token, right=True) - 1
    position = token - starts[sequence]
    return torch.where(position < lengths[sequence], position, 0)


def _packed_rows(
    where: str, angles: torch.Tensor, cu_seqlens: torch.Tensor, padded: torch.Tensor | None, tokens: int
) -> torch.Tensor:
    """[tokens, rotated] of angles [positions, rotated]."""
    if padded is not None and padded.shape != cu_seqlens.shape:
        raise ValueError(
            f"{where}: expected as many starts in cu_seqlens_padded as in cu_seqlens, {cu_seqlens.numel()}, got {padded.numel()}"
        )
    positions = _packed_positions(cu_seqlens, padded, tokens)
    try:
        return angles[positions]
    except IndexError:
        needed, got = int(positions.max()) + 1, angles.shape[0]
        raise ValueError(
            f"{where}: expected freqs of {needed} positions, the longest sequence of cu_seqlens, or more, got {got}"
        ) from None


def apply_rotary_pos_emb(
    t: torch.Tensor,
    freqs: torch.Tensor,
    tensor_format: str = "sbhd",
    interleaved: bool = False,
    fused: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    **rest: Any,
) -> torch.Tensor:
    """t [seq, batch, heads, channels] (bshd: [batch, seq, ...]; thd: [tokens, heads, channels], with cu_seqlens) with its
    first freqs.shape[-1] channels turned by freqs [positions or more, 1, 1, channels]. FP32 inside, in the dtype of t.
    One implementation, whatever `fused` says. A token of no sequence is turned as the first of one."""
    check_rest("apply_rotary_pos_emb", rest, {"start_positions": None, "cp_size": 1, "cp_rank": 0})
    return _turned(t, freqs, tensor_format, interleaved, cu_seqlens, None)


def _turned(
    t: torch.Tensor,
    freqs: torch.Tensor,
    tensor_format: str,
    interleaved: bool,
    cu_seqlens: torch.Tensor | None,
    padded: torch.Tensor | None,
) -> torch.Tensor:
    where = "apply_rotary_pos_emb"
    layout = check_choice(where, "tensor_format", tensor_format, ("sbhd", "bshd", "thd"))
    check_tensor(where, "t", t)
    angles = _rows(check_tensor(where, "freqs", freqs))
    if t.dim() != len(layout):
        raise ValueError(f"{where}: expected t of {len(layout)} dimensions for tensor_format '{layout}', got {list(t.shape)}")
    if layout == "thd":
        if cu_seqlens is None:
            raise ValueError(f"{where}: expected cu_seqlens with tensor_format 'thd', got None")
        angles = _packed_rows(where, angles, cu_seqlens, padded, t.shape[0])
    turned: torch.Tensor = _rotary(t, angles, position_dim=1 if layout == "bshd" else 0, interleaved=interleaved)
    return turned


def turn_query_and_key(
    query: torch.Tensor,
    key: torch.Tensor,
    embedding: RotaryEmbedding,
    tensor_format: str,
    interleaved: bool,
    packed: Mapping[str, Any],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as apply_rotary_pos_emb turns them. packed: cu_seqlens_q and cu_seqlens_kv of "thd", and, if given, *_padded."""

    def turned(x: torch.Tensor, angles: torch.Tensor, name: str) -> torch.Tensor:
        return _turned(x, angles, tensor_format, interleaved, packed.get(name), packed.get(f"{name}_padded"))

    of_query, of_key = embedding if isinstance(embedding, tuple) else (embedding, embedding)
    return turned(query, of_query, "cu_seqlens_q"), turned(key, of_key, "cu_seqlens_kv")
