"""State of one rank of FullyShardedDataParallel, saved in a sharded checkpoint or loaded from one of any number of ranks."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import nn

from plimsoll._overflow import count_overflowed, warn_of_overflow
from plimsoll.shard.sharded_checkpoint import Checkpoint, Piece
from plimsoll.shard.sharded_parameters import Part, clean, expect_state_by_element, held_parts

# Beside the optimizer's tensors: what is no tensor, as the bytes of a JSON text, since a section holds tensors alone.
OPTIONS = "param_groups"

Tensors = dict[str, "torch.Tensor | Piece"]


def model_tensors(root: Any) -> Tensors:
    buffers = {name: b.float() if b.dtype in (torch.float16, torch.bfloat16) else b for name, b in _buffers(root).items()}
    return {**buffers, **{part.name: _piece(part, part.leaf) for part in held_parts(root)}}


def load_model(root: Any, checkpoint: Checkpoint, section: str) -> None:
    saved = checkpoint.section_shapes(section)
    buffers = _buffers(root)
    wanted = {part.name: part.shape for part in held_parts(root)}
    missing = sorted((wanted.keys() | buffers.keys()) - saved.keys())
    if missing:
        raise KeyError(f"{checkpoint.directory}: expected {missing} in the section {section!r}")
    others = [f"{name} of {shape}, got {saved[name]}" for name, shape in wanted.items() if saved[name] != shape]
    if others:
        raise ValueError(f"{checkpoint.directory}: expected {'; '.join(others)}")
    overflowed = []
    with torch.no_grad():
        for part in held_parts(root):
            stored, held = checkpoint.read(section, part.name, part.begin, part.end), part.of(part.leaf)
            held.copy_(stored)
            overflowed.append((part.name, count_overflowed(stored, held), held))
    root.load_local_state_dict({name: checkpoint.read(section, name) for name in buffers}, strict=False)
    checkpoint.check_files()
    warn_of_overflow(str(checkpoint.directory), overflowed, stacklevel=4)


def optimizer_tensors(root: Any, optimizer: torch.optim.Optimizer) -> Tensors:
    tensors: Tensors = {}
    counts = set()  # of steps and the like: the same for all of a parameter
    for part in held_parts(root):
        state = optimizer.state.get(part.leaf, {})
        expect_state_by_element(part.name, state)
        for key, value in state.items():
            value = torch.as_tensor(value)
            if value.shape == part.leaf.shape and key != "step":  # which may have the shape of a leaf without dimensions
                tensors[f"{part.name}.{key}"] = _piece(part, value)
            else:
                counts.add(key)
                tensors[f"{part.name}.{key}"] = value
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    text = json.dumps({"param_groups": groups, "counts": sorted(counts)})
    return {**tensors, OPTIONS: torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)}


def load_optimizer(root: Any, optimizer: torch.optim.Optimizer, checkpoint: Checkpoint, section: str) -> None:
    saved, where = checkpoint.section_shapes(section), checkpoint.directory
    if OPTIONS not in saved:
        raise KeyError(f"{where}: expected {OPTIONS!r} in the section {section!r}")
    options = json.loads(bytes(checkpoint.read(section, OPTIONS).tolist()))
    groups = options["param_groups"]
    if len(groups) != len(optimizer.param_groups):
        raise ValueError(f"{where}: expected {len(optimizer.param_groups)} param_groups, got {len(groups)}")
    members = {id(leaf) for group in optimizer.param_groups for leaf in group["params"]}
    keys: dict[str, list[str]] = {}  # by parameter
    for name in saved:
        parameter, _, key = name.rpartition(".")
        keys.setdefault(parameter, []).append(key)
    parts = list(held_parts(root))
    unknown = sorted(keys.keys() - {part.name for part in parts} - {""})
    if unknown:
        raise ValueError(f"{where}: expected states of the module's parameters, got those of {', '.join(unknown)}")
    parts = [part for part in parts if id(part.leaf) in members]
    tensors = [(f"{part.name}.{key}", part) for part in parts for key in keys.get(part.name, []) if key not in options["counts"]]
    others = [f"{name} of {part.shape}, got {saved[name]}" for name, part in tensors if saved[name] != part.shape]
    if others:
        raise ValueError(f"{where}: expected {'; '.join(others)}")
    states: dict[nn.Parameter, dict[str, Any]] = {}
    for part in parts:
        state = states.setdefault(part.leaf, {})
        for key in keys.get(part.name, []):
            name = f"{part.name}.{key}"
            if key in options["counts"]:
                state[key] = checkpoint.read(section, name)
            else:
                values = checkpoint.read(section, name, part.begin, part.end)
                whole = state.setdefault(key, torch.zeros(part.leaf.shape, dtype=values.dtype, device=part.leaf.device))
                part.of(whole).copy_(values.view(-1))
    checkpoint.check_files()
    _load_states(optimizer, states, groups)


def _load_states(
    optimizer: torch.optim.Optimizer, states: dict[nn.Parameter, dict[str, Any]], groups: list[dict[str, Any]]
) -> None:
    """By the optimizer's own load_state_dict(), which keeps them in its way: of these parameters, those that have none had none
    when they were saved."""
    state, param_groups, place = {}, [], 0
    for own, loaded in zip(optimizer.param_groups, groups, strict=True):
        places = range(place, place := place + len(own["params"]))
        for number, leaf in zip(places, own["params"], strict=True):
            kept = states[leaf] if leaf in states else optimizer.state.get(leaf)
            if kept:
                state[number] = kept
        param_groups.append({**own, **loaded, "params": list(places)})
    optimizer.load_state_dict({"state": state, "param_groups": param_groups})


def _piece(part: Part, flat: torch.Tensor) -> Piece:
    return Piece(part.of(flat.detach()), part.shape, part.begin)


def _buffers(root: Any) -> dict[str, torch.Tensor]:
    """Buffers that state dicts have, on this rank."""
    return {
        clean(f"{path}.{name}" if path else name): buffer
        for path, module in root.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    }
