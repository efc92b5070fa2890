"""Rows of tokens put together by expert, and back: the way into and out of a mixture's GroupedLinear."""

from __future__ import annotations

import torch

from plimsoll.pytorch.arguments import check_choice, check_size, check_sizes, check_tensor, shown

MAPS = ("mask", "index")


def _places(routing_map: torch.Tensor, map_type: str) -> torch.Tensor:
    """[rows, 2]: token and column of routing_map of each row, by expert and then by token."""
    if map_type == "mask":
        return routing_map.bool().t().nonzero().flip(1)
    if (routing_map < 0).any():
        raise ValueError(
            f"moe_permute: expected a routing_map of experts >= 0 with map_type 'index', got {routing_map.min().item()}"
        )
    order = routing_map.flatten().argsort(stable=True)
    choices = routing_map.shape[1]
    return torch.stack((order // choices, order % choices), 1)


def moe_permute(
    inp: torch.Tensor,
    routing_map: torch.Tensor,
    num_out_tokens: int = -1,
    max_token_num: int = -1,
    map_type: str = "mask",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of inp [tokens, hidden], a copy for each expert that takes them, by expert and then by token.

    routing_map: map_type "mask": bool or 0 and 1 [tokens, experts]; "index": experts [tokens, choices]. num_out_tokens: rows
    after that many are dropped; -1: none. max_token_num, a hint for allocation, has no effect. Returns the rows and
    row_id_map, int64 in the shape of routing_map: the row of each pair, -1 without one.
    """
    check_tensor("moe_permute", "inp", inp)
    check_tensor("moe_permute", "routing_map", routing_map)
    if inp.dim() != 2 or routing_map.dim() != 2 or routing_map.shape[0] != inp.shape[0]:
        raise ValueError(
            "moe_permute: expected inp [tokens, hidden] and routing_map [tokens, experts or choices], got "
            f"{list(inp.shape)} and {list(routing_map.shape)}"
        )
    check_choice("moe_permute", "map_type", map_type, MAPS)
    if routing_map.is_floating_point() or (map_type == "index" and routing_map.dtype == torch.bool):
        expected = "integers" if map_type == "index" else "bool or integers"
        raise TypeError(f"moe_permute: expected a routing_map of {expected} with map_type '{map_type}', got {shown(routing_map)}")
    check_size("moe_permute", "num_out_tokens", num_out_tokens, -1)
    check_size("moe_permute", "max_token_num", max_token_num, -1)
    places = _places(routing_map, map_type)
    if num_out_tokens >= 0:
        places = places[:num_out_tokens]
    row_id_map = torch.full(routing_map.shape, -1, dtype=torch.int64, device=inp.device)
    row_id_map[places[:, 0], places[:, 1]] = torch.arange(places.shape[0], device=inp.device)
    return inp[places[:, 0]], row_id_map


def moe_unpermute(
    inp: torch.Tensor,
    row_id_map: torch.Tensor,
    merging_probs: torch.Tensor | None = None,
    restore_shape: torch.Size | tuple[int, ...] | None = None,
    map_type: str = "mask",
) -> torch.Tensor:
    """Sums of each token's rows: the inverse of moe_permute, whose row_id_map it takes.

    merging_probs, in the shape of row_id_map: a factor for each pair. restore_shape: [tokens, hidden], checked. Sums are
    made in FP32, in the order of the columns, and rounded once to the dtype of inp.
    """
    where = "moe_unpermute"
    check_choice(where, "map_type", map_type, MAPS)
    check_tensor(where, "inp", inp)
    check_tensor(where, "row_id_map", row_id_map)
    if inp.dim() != 2 or row_id_map.dim() != 2 or row_id_map.dtype != torch.int64:
        raise ValueError(
            f"{where}: expected inp [rows, hidden] and row_id_map int64 [tokens, experts or choices], got {shown(inp)} and "
            f"{shown(row_id_map)}"
        )
    if row_id_map.numel() and row_id_map.max() >= inp.shape[0]:
        raise ValueError(f"{where}: expected row_id_map of rows below {inp.shape[0]}, got {row_id_map.max().item()}")
    tokens, hidden = row_id_map.shape[0], inp.shape[-1]
    if restore_shape is not None and check_sizes(where, "restore_shape", restore_shape) != [tokens, hidden]:
        raise ValueError(f"{where}: expected restore_shape {(tokens, hidden)}, got {tuple(restore_shape)}")
    if merging_probs is not None and check_tensor(where, "merging_probs", merging_probs).shape != row_id_map.shape:
        raise ValueError(f"{where}: expected merging_probs {list(row_id_map.shape)}, got {list(merging_probs.shape)}")
    is_there = row_id_map >= 0
    most = int(is_there.sum(1).max()) if row_id_map.numel() else 0
    columns = (~is_there).to(torch.int8).argsort(dim=1, stable=True)[:, :most]  # of the pairs that are there, first
    rows, there = row_id_map.gather(1, columns), is_there.gather(1, columns)
    output = inp.new_zeros((tokens, hidden), dtype=torch.float32)
    if most == 0:  # gradients of 0, as of rows that no token takes
        for given in (inp, merging_probs):
            output = output if given is None else output + given[:0].sum()
    for choice in range(most):
        part = inp[rows[:, choice].clamp_min(0)].float() if inp.shape[0] else output
        if merging_probs is not None:
            part = part * merging_probs.gather(1, columns[:, choice : choice + 1]).float()
        output = output + torch.where(there[:, choice : choice + 1], part, 0.0)
    return output.to(inp.dtype)
