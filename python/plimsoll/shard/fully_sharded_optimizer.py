"""The state of an optimizer over shards, as that of one over the whole parameters; and back."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from plimsoll.shard.sharded_parameters import Part, held_parts


def whole_parameters(root: Any) -> list[Part]:
    """This rank's parts of the parameters, in the order of the module inside."""
    found = {id(part.parameter): part for part in held_parts(root)}
    owners = {}
    for instance in root._instances():
        for slot in instance._sharded.slots + instance._sharded.borrowed:
            owners.setdefault(id(slot.module), []).append(id(slot.parameter))
    order = [parameter for module in root.modules() for parameter in owners.get(id(module), [])]
    return [found[parameter] for parameter in dict.fromkeys(order)]


def _is_sharded(value: Any, leaf: torch.Tensor) -> bool:
    return torch.is_tensor(value) and value.dim() == 1 and value.numel() == leaf.numel()


def gather(root: Any, optimizer: torch.optim.Optimizer, recipient_rank: int | None) -> dict[str, Any] | None:
    """What torch's optimizer of the module inside would have; to recipient_rank, or to all (None). Collective."""
    local_ids = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    wholes = [whole for whole in whole_parameters(root) if id(whole.leaf) in local_ids]
    saved = optimizer.state_dict()
    mine = []
    for whole in wholes:
        state = saved["state"].get(local_ids[id(whole.leaf)], {})
        mine.append(
            {key: whole.of(value).clone() if _is_sharded(value, whole.leaf) else value for key, value in state.items()}
        )
    everyone = _gathered(root, [(whole.begin, whole.end, state) for whole, state in zip(wholes, mine)], recipient_rank)
    if everyone is None:
        return None
    states = {}
    for index, whole in enumerate(wholes):
        parts = [rank[index] for rank in everyone]
        joined = {key: _joined(key, whole, parts) for key in mine[index]}
        if joined:
            states[index] = joined
    id_map = {index: local_ids[id(whole.leaf)] for index, whole in enumerate(wholes)}
    param_groups = []
    for group, packed in zip(optimizer.param_groups, saved["param_groups"]):
        members = {local_ids[id(p)] for p in group["params"]}
        param_groups.append({**packed, "params": [index for index, local in id_map.items() if local in members]})
    extra = {key: value for key, value in saved.items() if key not in ("state", "param_groups")}
    return {
        **extra,
        "state": states,
        "param_groups": param_groups,
        "param_id_map": {index: local if index in states else None for index, local in id_map.items()},
        "uncollected_local_ids": [],
    }


def _gathered(root: Any, mine: Any, recipient_rank: int | None) -> list[Any] | None:
    group = root._ranks.group
    everyone: list[Any] = [None] * root.world_size
    if recipient_rank is None:
        dist.all_gather_object(everyone, mine, group=group)
        return everyone
    is_here = root.rank == recipient_rank
    dist.gather_object(mine, everyone if is_here else None, group=group, group_dst=recipient_rank)
    return everyone if is_here else None


def _joined(key: str, whole: Part, parts: list[tuple[int, int, dict[str, Any]]]) -> Any:
    held = [(begin, end, state[key]) for begin, end, state in parts]
    if not all(torch.is_tensor(value) and value.shape == (end - begin,) for begin, end, value in held):
        return copy.deepcopy(held[0][2])  # the same on all ranks, and for all parameters of a shard: a count of steps
    result = torch.empty(whole.shape, dtype=held[0][2].dtype)
    for begin, end, value in held:
        result.view(-1)[begin:end] = value
    return result


def shard(root: Any, full: dict[str, Any]) -> dict[str, Any]:
    """This rank's part, for an optimizer of root.parameters()."""
    leaves = list(root.parameters())
    wholes = [whole for whole in whole_parameters(root) if any(whole.leaf is leaf for leaf in leaves)]
    index_of = {id(leaf): index for index, leaf in enumerate(leaves)}
    parts: dict[int, dict[str, list[Any]]] = {}
    members: dict[int, int] = {}
    for index, whole in enumerate(wholes):
        members[index] = local = index_of[id(whole.leaf)]
        for key, value in full["state"].get(index, {}).items():
            is_whole = torch.is_tensor(value) and value.shape == whole.shape and value.dim() > 0
            piece = value.reshape(-1)[whole.begin : whole.end] if is_whole else value
            parts.setdefault(local, {}).setdefault(key, []).append(piece)
    state = {
        local: {
            key: torch.cat(values) if torch.is_tensor(values[0]) and values[0].dim() == 1 else copy.deepcopy(values[0])
            for key, values in keys.items()
        }
        for local, keys in parts.items()
    }
    groups = [
        {**group, "params": sorted({members[index] for index in group["params"]})} for group in full["param_groups"]
    ]
    extra = {k: v for k, v in full.items() if k not in ("state", "param_groups", "param_id_map", "uncollected_local_ids")}
    return {**extra, "state": state, "param_groups": groups}
