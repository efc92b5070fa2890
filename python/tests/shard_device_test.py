"""Parameters on a device under plimsoll.shard, as far as a machine without one can tell: what is refused, and in which words."""

import types
from typing import Any

import plimsoll.shard as shard
import pytest
import ranks
import torch
from plimsoll.shard.parameter_device import expect_backend_for, parameter_device
from plimsoll.shard.ranks import ProcessGroupName, own_group, ranks_of

CUDA = torch.device("cuda", 0)
NOTHING = dict.fromkeys(
    ("compute_device", "state_dict_device", "move_params_to_cpu", "cpu_offload", "move_grads_to_cpu", "offload_path")
)


@ranks.case(2)
def gloo_alone_is_for_the_cpu(group):
    ours = ranks_of(group)
    expect_backend_for(torch.device("cpu"), ours)
    with pytest.raises(
        ValueError, match=r'parameters on cuda:0, as init_process_group\("nccl"\) or .* got one of "cpu:gloo,cuda:gloo"'
    ):
        expect_backend_for(CUDA, ours)


@ranks.case(2)
def gradients_on_a_device_travel_in_the_group_of_the_parameters_or_in_one_that_is_given(group):
    ours = ranks_of(group)
    assert own_group(ours, ProcessGroupName.reduce_scatter, CUDA) is ours
    on_cpu = own_group(ours, ProcessGroupName.reduce_scatter)
    assert on_cpu is not ours and on_cpu.group is group
    given = own_group(ours, group, CUDA)
    assert given is not ours and given.group is group


@pytest.mark.parametrize("name", ranks.names(__name__))
def test_on_ranks(outcomes, name):
    outcomes.check(name)


def on(device) -> list[Any]:
    return [types.SimpleNamespace(device=torch.device(device))]


def test_the_device_is_that_of_the_parameters():
    alone: Any = types.SimpleNamespace(group=None)
    assert parameter_device([], NOTHING, alone).type == "cpu"
    assert parameter_device(on("cuda:1"), {**NOTHING, "compute_device": "cuda"}, alone) == torch.device("cuda", 1)
    for name in ("compute_device", "state_dict_device"):
        with pytest.raises(ValueError, match=f"expected {name} cpu, where the parameters are, got cuda"):
            parameter_device(on("cpu"), {**NOTHING, name: torch.device("cuda")}, alone)
    for name in ("move_params_to_cpu", "cpu_offload", "move_grads_to_cpu"):
        assert parameter_device(on("cpu"), {**NOTHING, name: True}, alone).type == "cpu"
        with pytest.raises(ValueError, match=f"expected parameters on the CPU with {name}, got parameters on cuda:0"):
            parameter_device(on("cuda:0"), {**NOTHING, name: True}, alone)
    with pytest.raises(ValueError, match="with offload_path"):
        parameter_device(on("cuda:0"), {**NOTHING, "offload_path": "/tmp"}, alone)


def test_a_model_without_values_is_one_clear_error():
    with pytest.raises(ValueError, match="expected parameters with values, got weight on meta"):
        shard.FullyShardedDataParallel(
            torch.nn.Linear(2, 2, device="meta"), types.SimpleNamespace(rank=lambda: 0, size=lambda: 1)
        )


def test_compression_is_for_the_cpu():
    with pytest.raises(ValueError, match="expected parameters on the CPU with compression 'fp8', got parameters on meta"):
        shard.GradientCompression("fp8", torch.nn.Linear(2, 2, device="meta"))
