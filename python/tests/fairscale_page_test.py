"""docs/sharding.md: what it says of fairscale's names is so. Each of them is here under its own name, or in the table."""

import inspect
import pathlib
import re
from typing import Any

import pytest
import torch
from plimsoll.amp import GradScaler
from plimsoll.shard import OSS, FlattenParamsWrapper, FullyShardedDataParallel, ShardedDataParallel, ShardedGradScaler
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parents[2]
REQUIRED = inspect.Parameter.empty

# fairscale 0.4.13: arguments of constructors with their defaults, and public names of instances. Behind "private": names that
# begin with an underscore and that its users call nevertheless; behind "torch": those that only the table is about.
SCALER = {"init_scale": 2.0**16, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000, "enabled": True}
SCALER_NAMES = "get_scale is_enabled load_state_dict scale state_dict step unscale_ update"
FAIRSCALE: dict[str, dict[str, Any]] = {
    "FullyShardedDataParallel": {
        "class": FullyShardedDataParallel,
        "arguments": {
            "module": REQUIRED,
            "process_group": None,
            "process_group_reduce_scatter": "reduce_scatter",
            "reshard_after_forward": True,
            "disable_reshard_on_root": True,
            "mixed_precision": False,
            "fp32_reduce_scatter": False,
            "flatten_parameters": True,
            "move_params_to_cpu": False,
            "compute_dtype": None,
            "buffer_dtype": None,
            "move_grads_to_cpu": None,
            "bucket_cap_mb": 25,
            "compute_device": None,
            "no_broadcast_optim_state": False,
            "state_dict_device": None,
            "clear_autocast_cache": False,
            "force_input_to_fp32": False,
            "verbose": False,
            "cpu_offload": False,
            "state_dict_on_rank_0_only": False,
            "gradient_predivide_factor": None,
            "allow_reset_parameters": False,
        },
        "names": """allow_reset_parameters append_shared_param apply assert_state bucket_cap_mb buffer_dtype buffer_size
            children_share_process_group clear_autocast_cache clip_grad_norm_ compute_device compute_dtype
            consolidate_shard_weights cpu_offload disable_reshard_on_root extra_repr flatten_parameters force_input_to_fp32
            forward fp32_reduce_scatter gather_full_optim_state_dict get_shard_from_optim_state_dict
            gradient_postdivide_factor gradient_predivide_factor has_full_params load_local_state_dict load_state_dict
            local_metadata_dict local_state_dict mixed_precision module move_grads_to_cpu move_params_to_cpu named_parameters
            no_broadcast_optim_state no_sync non_shared_params numel_padded_per_param parameters params params_with_grad
            process_group process_group_reduce_scatter rank reset_parameters reshard_after_forward
            set_gradient_divide_factors state_dict state_dict_device state_dict_on_rank_0_only summon_full_params
            training_state uncollected_opt_state verbose world_size""",
        "private": """_free_full_params _fsdp_wrapped_module _is_root _register_post_backward_hooks _register_pre_backward_hooks
            _reset_lazy_init""",
        "torch": "named_buffers",
    },
    "ShardedDataParallel": {
        "class": ShardedDataParallel,
        "arguments": {
            "module": REQUIRED,
            "sharded_optimizer": REQUIRED,
            "process_group": None,
            "broadcast_buffers": True,
            "sync_models_at_startup": True,
            "reduce_buffer_size": 2**23,
            "auto_refresh_trainable": True,
            "reduce_fp16": False,
            "warn_on_trainable_params_changed": True,
        },
        "names": "device_type forward is_multi_device_module module no_sync reduce refresh_trainable sync_buffers to zero_grad",
    },
    "OSS": {
        "class": OSS,
        "arguments": {
            "params": REQUIRED,
            "optim": torch.optim.SGD,
            "group": None,
            "broadcast_buffer_size": -1,
            "broadcast_fp16": False,
            "force_broadcast_object": False,
        },
        "names": """add_param_group backend broadcast_fp16 buckets clip_grad_norm consolidate_state_dict defaults
            force_broadcast_object global_rank group load_state_dict optim param_groups partition_parameters rank
            refresh_trainable state state_dict step world_size zero_grad""",
        "private": "_default_device _per_device_params",
    },
    "FlattenParamsWrapper": {
        "class": FlattenParamsWrapper,
        "arguments": {"module": REQUIRED, "param_list": None, "flat_param_names": None},
        "names": """flat_param flat_param_names flat_params flat_state_dict forward get_param_views is_flattened load_state_dict
            metadata module num_params_managed state_dict unflatten_params""",
        "private": "_fpw_module",
    },
    "GradScaler": {"class": GradScaler, "arguments": SCALER, "names": SCALER_NAMES},
    "ShardedGradScaler": {"class": ShardedGradScaler, "arguments": {**SCALER, "process_group": None}, "names": SCALER_NAMES},
}


def names_of(entry):
    return set(" ".join(entry.get(kind, "") for kind in ("names", "private", "torch")).split())


def table():
    """{"CLASS.name": (what the page says of "here", what it says differs)}."""
    page = (ROOT / "docs" / "sharding.md").read_text()
    section = page.split("## fairscale's names\n")[1].split("\n## ")[0]
    rows = [re.split(r" \| ", line.strip("| ")) for line in section.splitlines() if line.startswith("| `")]
    assert all(len(row) == 3 and row[2] for row in rows)
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0].strip("`"): (row[1], row[2]) for row in rows}


def has(made, name):
    """By itself, not by the module inside."""
    return name in dir(made) or name in getattr(made, "_modules", {})


@pytest.fixture(scope="module")
def instances(tmp_path_factory):
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    net = nn.Linear(3, 2)
    optimizer = OSS(net.parameters(), lr=0.1)
    yield {
        "FullyShardedDataParallel": FullyShardedDataParallel(nn.Linear(3, 2)),
        "ShardedDataParallel": ShardedDataParallel(net, optimizer),
        "OSS": optimizer,
        "FlattenParamsWrapper": FlattenParamsWrapper(nn.Linear(3, 2)),
        "GradScaler": GradScaler(),
        "ShardedGradScaler": ShardedGradScaler(),
    }
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("kind", FAIRSCALE)
def test_each_name_is_here_unless_the_table_says_none(instances, kind):
    said = table()
    absent = {name for name in names_of(FAIRSCALE[kind]) if not has(instances[kind], name)}
    assert absent == {key.split(".")[1] for key, (here, _) in said.items() if here == "none" and key.split(".")[0] == kind}


@pytest.mark.parametrize("kind", FAIRSCALE)
def test_each_argument_is_here_with_its_default(kind):
    arguments = inspect.signature(FAIRSCALE[kind]["class"]).parameters
    for name, default in FAIRSCALE[kind]["arguments"].items():
        assert arguments[name].default == default, name


def test_positions_of_arguments_are_fairscales():
    for kind, entry in FAIRSCALE.items():
        ours = [name for name in inspect.signature(entry["class"]).parameters]
        if kind != "GradScaler":  # torch's: the device is the first
            assert ours[: len(entry["arguments"])] == list(entry["arguments"]), kind


def test_the_table_is_of_names_that_fairscale_has():
    for key, (here, _) in table().items():
        kind, name = key.split(".")
        assert here in ("the same", "none"), key
        assert name in names_of(FAIRSCALE[kind]) | FAIRSCALE[kind]["arguments"].keys(), key


def test_a_name_that_nobody_has_is_noticed(instances):
    assert not any(has(made, "no_such_name") for made in instances.values())
    with pytest.raises(KeyError):
        table()["FullyShardedDataParallel.no_such_name"]
