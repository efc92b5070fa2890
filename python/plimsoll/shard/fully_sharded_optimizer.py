"""The state of an optimizer over shards, as that of one over the whole parameters; and back."""

from __future__ import annotations

import copy
from typing import Any

import torch

from plimsoll.shard.sharded_parameters import Part, Slot, clean, expect_state_by_element, held_parts

OURS = ("state", "param_groups", "param_names", "param_id_map", "uncollected_local_ids")


def _named_parts(root: Any) -> dict[str, Part]:
    """Parts of the parameters that this rank holds, by all names that the module inside has for them, in its order."""
    found = {id(part.parameter): part for part in held_parts(root)}
    slots: dict[int, list[Slot]] = {}
    for instance in root._instances():
        for slot in instance._sharded.in_order:
            slots.setdefault(id(slot.module), []).append(slot)
    return {
        clean(f"{path}.{slot.name}" if path else slot.name): found[id(slot.parameter)]
        for path, module in root.named_modules()
        for slot in slots.get(id(module), [])
    }


def whole_parameters(root: Any) -> list[Part]:
    """Parts of the parameters that this rank holds, each once, in the order and with the names of the module inside."""
    named: dict[int, Part] = {}
    for name, part in _named_parts(root).items():
        named.setdefault(id(part.parameter), part._replace(name=name))
    return list(named.values())


def numbered_parameters(root: Any, optimizer: torch.optim.Optimizer) -> list[list[Part]]:
    """Parameters of each of the optimizer's groups. Their numbers count on from group to group, as torch's do."""
    wholes = whole_parameters(root)
    groups = [{id(leaf) for leaf in group["params"]} for group in optimizer.param_groups]
    return [[whole for whole in wholes if id(whole.leaf) in members] for members in groups]


def _is_sharded(value: Any, leaf: torch.Tensor) -> bool:
    return torch.is_tensor(value) and value.shape == leaf.shape


def gather(root: Any, optimizer: torch.optim.Optimizer, recipient_rank: int | None) -> dict[str, Any] | None:
    """State that torch's optimizer of the module inside would have; to recipient_rank, or to all (None). Collective."""
    local_ids = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    numbered = numbered_parameters(root, optimizer)
    wholes = [whole for group in numbered for whole in group]
    saved = optimizer.state_dict()
    mine = []
    for whole in wholes:
        state = saved["state"].get(local_ids[id(whole.leaf)], {})
        expect_state_by_element(whole.name, state)
        held = {key: whole.of(value).clone() if _is_sharded(value, whole.leaf) else value for key, value in state.items()}
        mine.append({key: value.cpu() if torch.is_tensor(value) else value for key, value in held.items()})
    everyone = root._ranks.gather(
        [(whole.begin, whole.end, state) for whole, state in zip(wholes, mine, strict=False)], recipient_rank
    )
    if everyone is None:
        return None
    states = {}
    for index, whole in enumerate(wholes):
        parts = [rank[index] for rank in everyone]
        joined = {key: _joined(key, whole, parts) for key in mine[index]}
        if joined:
            states[index] = joined
    param_groups: list[dict[str, Any]] = []
    for members, packed in zip(numbered, saved["param_groups"], strict=False):
        begin = sum(len(group["params"]) for group in param_groups)
        names = {"param_names": [whole.name for whole in members]} if "param_names" in packed else {}
        param_groups.append({**packed, **names, "params": list(range(begin, begin + len(members)))})
    extra = {key: value for key, value in saved.items() if key not in ("state", "param_groups")}
    return {
        **extra,
        "state": states,
        "param_groups": param_groups,
        "param_names": {index: whole.name for index, whole in enumerate(wholes)},
        "param_id_map": {index: local_ids[id(whole.leaf)] if index in states else None for index, whole in enumerate(wholes)},
        "uncollected_local_ids": [],
    }


def _joined(key: str, whole: Part, parts: list[tuple[int, int, dict[str, Any]]]) -> Any:
    held = [(begin, end, state[key]) for begin, end, state in parts]
    if not all(torch.is_tensor(value) and value.shape == (end - begin,) for begin, end, value in held):
        return copy.deepcopy(held[0][2])  # the same on all ranks, and for all parameters of a shard: a count of steps
    result = torch.empty(whole.shape, dtype=held[0][2].dtype)
    for begin, end, value in held:
        result.view(-1)[begin:end] = value
    return result


def _parts_by_number(root: Any, full: dict[str, Any]) -> dict[int, Part]:
    groups = full["param_groups"]
    names = full.get("param_names")
    if names is None and all("param_names" in group for group in groups):
        names = {index: name for group in groups for index, name in zip(group["params"], group["param_names"], strict=False)}
    if names is not None:
        named = _named_parts(root)
        unknown = sorted(set(names.values()) - named.keys())
        if unknown:
            raise ValueError(f"get_shard_from_optim_state_dict: expected parameters of the module, got {', '.join(unknown)}")
        return {index: named[name]._replace(name=name) for index, name in names.items()}
    if len(groups) != 1:
        raise ValueError(
            f"get_shard_from_optim_state_dict: expected one param_group, or param_names, got {len(groups)} param_groups"
        )
    numbers = groups[0]["params"]
    wholes = whole_parameters(root)
    trained = [whole for whole in wholes if whole.leaf.requires_grad]
    for choice in (wholes, trained):
        if len(choice) == len(numbers):
            return dict(zip(numbers, choice, strict=False))
    raise ValueError(
        f"get_shard_from_optim_state_dict: expected {len(wholes)} or, of trained ones, {len(trained)} parameters, got {len(numbers)}"
    )


def _elementwise_keys(states: dict[int, dict[str, Any]], parts: dict[int, Part]) -> set[str]:
    """The entries of a state with an element for each element of the parameter. Parameters without dimensions do not tell
    which these are: where there are no others, all entries but the count of steps."""
    entries = [(key, value, parts[index].shape) for index, state in states.items() for key, value in state.items()]
    seen = {(key, shape) for key, value, shape in entries if torch.is_tensor(value) and value.shape == shape}
    return {key for key, shape in seen if shape} or {key for key, _ in seen if key != "step"}


def shard(root: Any, full: dict[str, Any]) -> dict[str, Any]:
    """Part of this rank, for an optimizer of root.parameters(), or of some of them in that order."""
    leaves = {id(leaf): (index, name, leaf) for index, (name, leaf) in enumerate(root.named_parameters())}
    parts = _parts_by_number(root, full)
    elementwise = _elementwise_keys(full["state"], parts)
    state: dict[int, dict[str, Any]] = {}
    for index, entries in full["state"].items():
        part = parts[index]
        local, _, leaf = leaves[id(part.leaf)]
        mine = state.setdefault(local, {})
        for key, value in entries.items():
            if key not in elementwise:
                mine.setdefault(key, copy.deepcopy(value))
                continue
            if value.shape != part.shape:
                raise ValueError(
                    f"get_shard_from_optim_state_dict: expected {key} of {part.name} to be {list(part.shape)}, got {list(value.shape)}"
                )
            flat = mine.setdefault(key, torch.zeros(leaf.shape, dtype=value.dtype))  # zeros: of what had no gradient yet
            part.of(flat).copy_(value.reshape(-1)[part.begin : part.end])
    groups = []
    placed: set[int] = set()
    for group in full["param_groups"]:
        members = sorted({leaves[id(parts[index].leaf)][:2] for index in group["params"]})
        for local, name in members:
            if local in placed:
                raise ValueError(f"get_shard_from_optim_state_dict: expected all parameters of {name} in one param_group")
            placed.add(local)
        names = {"param_names": [name for _, name in members]} if "param_names" in group else {}
        groups.append({**group, **names, "params": [local for local, _ in members]})
    extra = {key: value for key, value in full.items() if key not in OURS}
    return {**extra, "state": state, "param_groups": groups}
