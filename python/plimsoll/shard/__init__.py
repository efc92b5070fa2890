"""Several processes that share parameters, gradients and optimizer states; names and defaults are fairscale's."""

from plimsoll.shard.fully_sharded import FullyShardedDataParallel, TrainingState
from plimsoll.shard.ranks import ProcessGroupName
from plimsoll.shard.wrap import auto_wrap, config_auto_wrap_policy, default_auto_wrap_policy, enable_wrap, wrap

__all__ = [
    "FullyShardedDataParallel",
    "ProcessGroupName",
    "TrainingState",
    "auto_wrap",
    "config_auto_wrap_policy",
    "default_auto_wrap_policy",
    "enable_wrap",
    "wrap",
]
