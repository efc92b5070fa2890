"""Several processes that share parameters, gradients and optimizer states; names and defaults are fairscale's."""

from plimsoll.shard.activation_checkpoint import checkpoint, checkpoint_wrapper, disable_checkpointing
from plimsoll.shard.compression import GradientCompression, compress_hook
from plimsoll.shard.distributed_checkpoint import from_distributed_checkpoint, to_distributed_checkpoint
from plimsoll.shard.fairscale_names import TrainingState
from plimsoll.shard.flatten_params import FlattenParamsWrapper
from plimsoll.shard.fully_sharded import FullyShardedDataParallel
from plimsoll.shard.grad_scaler import ShardedAutomaticLossScaler, ShardedGradScaler
from plimsoll.shard.offload_model import OffloadModel
from plimsoll.shard.offload_optimizer import offload_optimizer
from plimsoll.shard.oss import OSS
from plimsoll.shard.ranks import ProcessGroupName
from plimsoll.shard.safetensors_files import from_safetensors, to_safetensors
from plimsoll.shard.selftest import SelfTest, selftest
from plimsoll.shard.sharded_checkpoint import Checkpoint, CheckpointSaver, Piece, open_checkpoint, open_latest_checkpoint
from plimsoll.shard.sharded_data_parallel import ShardedDataParallel
from plimsoll.shard.wrap import auto_wrap, config_auto_wrap_policy, default_auto_wrap_policy, enable_wrap, wrap

__all__ = [
    "OSS",
    "Checkpoint",
    "CheckpointSaver",
    "FlattenParamsWrapper",
    "FullyShardedDataParallel",
    "GradientCompression",
    "OffloadModel",
    "Piece",
    "ProcessGroupName",
    "SelfTest",
    "ShardedAutomaticLossScaler",
    "ShardedDataParallel",
    "ShardedGradScaler",
    "TrainingState",
    "auto_wrap",
    "checkpoint",
    "checkpoint_wrapper",
    "compress_hook",
    "config_auto_wrap_policy",
    "default_auto_wrap_policy",
    "disable_checkpointing",
    "enable_wrap",
    "from_distributed_checkpoint",
    "from_safetensors",
    "offload_optimizer",
    "open_checkpoint",
    "open_latest_checkpoint",
    "selftest",
    "to_distributed_checkpoint",
    "to_safetensors",
    "wrap",
]
