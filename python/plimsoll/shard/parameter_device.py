"""The device of the parameters of a FullyShardedDataParallel, and what has to fit it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from plimsoll.shard.ranks import Ranks


def parameter_device(parameters: list[nn.Parameter], arguments: dict[str, Any], ranks: Ranks) -> torch.device:
    """arguments: those of FullyShardedDataParallel. Raises ValueError where one of them, or the process group, is for another
    device."""
    device = parameters[0].device if parameters else torch.device("cpu")
    for name in ("compute_device", "state_dict_device"):
        given = arguments[name]
        if given is not None and torch.device(given).type != device.type:
            raise ValueError(f"FullyShardedDataParallel: expected {name} {device.type}, where the parameters are, got {given}")
    if device.type == "cpu":
        return device
    elsewhere = [n for n in ("move_params_to_cpu", "cpu_offload", "move_grads_to_cpu", "offload_path") if arguments[n]]
    if elsewhere:
        raise ValueError(
            f"FullyShardedDataParallel: expected parameters on the CPU with {elsewhere[0]}, got parameters on {device}, whose "
            "shards stay there"
        )
    expect_backend_for(device, ranks)
    return device


def expect_backend_for(device: torch.device, ranks: Ranks) -> None:
    """Raises ValueError where the group has no backend for tensors on that device but Gloo, which copies them to the CPU."""
    if device.type == "cpu" or not isinstance(ranks.group, dist.ProcessGroup):
        return
    config = dist.get_backend_config(ranks.group)
    backends = dict(each.split(":", 1) for each in config.split(",") if ":" in each)
    if backends.get(device.type, "gloo") == "gloo":
        raise ValueError(
            f"FullyShardedDataParallel: expected a process group with a backend for parameters on {device}, as "
            f'init_process_group("nccl") or "cpu:gloo,cuda:nccl" makes it, got one of "{config}"'
        )


def expect_uncompressed_on_device(whose: str, compression: str, parameters: Iterable[nn.Parameter]) -> None:
    """Raises ValueError where gradients of parameters that are not on the CPU are to be compressed."""
    others = [parameter.device for parameter in parameters if parameter.device.type != "cpu"]
    if compression != "none" and others:
        raise ValueError(
            f"{whose}: expected parameters on the CPU with compression {compression!r}, got parameters on {others[0]}"
        )
