"""The state dict of a whole model, from the shards of all ranks and what they say of them; fairscale's, too."""

from __future__ import annotations

from typing import Any

import torch

Tensors = dict[str, torch.Tensor]


def consolidate(
    shard_weights: list[Tensors], shard_metadata: list[dict[str, Any]], with_module_buffers: bool, strict: bool
) -> Tensors:
    if len(shard_weights) != len(shard_metadata) or not shard_weights:
        raise ValueError("Require metadata for each shard and non-empty shards")
    units = shard_metadata[0]["param_metadata"]
    whole: Tensors = {}
    for index, unit in enumerate(units):
        prefix = _prefix(unit)
        for shard in unit["params"]:
            entries = [metadata["param_metadata"][index]["params"][shard] for metadata in shard_metadata]
            if any(prefix + shard not in weights for weights in shard_weights) and not strict:
                continue
            flat = _joined(prefix + shard, shard_weights, entries)
            parts = flat.split([torch.Size(shape).numel() for shape in entries[0]["shapes"]])
            for name, shape, part in zip(entries[0]["names"], entries[0]["shapes"], parts, strict=True):
                whole[prefix + name] = part.reshape(shape).clone()
    for unit in units:
        prefix = _prefix(unit)
        # Two names of one parameter, in either order: fairscale's is another one than ours.
        for one, other in unit.get("shared_param_info", []):
            known, further = (one, other) if prefix + one in whole else (other, one)
            if strict or prefix + known in whole:
                whole[prefix + further] = whole[prefix + known]
        for name, first in unit.get("lent_param_info", []):
            if strict or first in whole:
                whole[prefix + name] = whole[first]
    if with_module_buffers:
        names = [name for name in shard_metadata[0]["buffer_names"] if name in shard_weights[0]]
        whole.update((name, shard_weights[0][name]) for name in names)
    return whole


def _prefix(unit: dict[str, Any]) -> str:
    return unit["fsdp_path"] + "." if unit["fsdp_path"] else ""


def _joined(name: str, shard_weights: list[Tensors], entries: list[dict[str, Any]]) -> torch.Tensor:
    """The ranks' parts, one after the other. Where the first holds all, as fairscale's ranks with a process group each
    do, the others hold it once more."""
    expected = sum(torch.Size(shape).numel() for shape in entries[0]["shapes"])
    parts = []
    for weights, entry in zip(shard_weights, entries, strict=True):
        values = weights[name].reshape(-1)
        parts.append(values[: values.numel() - entry.get("padding", 0)])
    flat = parts[0] if parts[0].numel() == expected else torch.cat(parts)
    if flat.numel() != expected:
        raise ValueError(f"consolidate_shard_weights: expected {expected} elements of {name}, got {flat.numel()}")
    return flat
