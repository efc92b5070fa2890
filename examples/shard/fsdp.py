"""Fully sharded training: each rank has a part of parameters, gradients and optimizer states, and a block is whole only while it
computes. First in fp16 with a loss scale that all ranks share, then with FP8 layers, whose weights travel as codes. At the end a
checkpoint that any number of ranks loads.

    .venv/bin/torchrun --standalone --nproc-per-node 2 examples/shard/fsdp.py
"""

import functools
import os
import tempfile
from contextlib import nullcontext

import plimsoll.pytorch as te
import torch
import torch.distributed as dist
from plimsoll.shard import (
    CheckpointSaver,
    FullyShardedDataParallel,
    ShardedGradScaler,
    auto_wrap,
    checkpoint_wrapper,
    default_auto_wrap_policy,
    enable_wrap,
    open_latest_checkpoint,
)
from torch.nn.functional import mse_loss


def model(seed: int) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    blocks = [te.LayerNormMLP(64, 128) for _ in range(3)]
    return torch.nn.Sequential(torch.nn.Linear(32, 64), *map(checkpoint_wrapper, blocks), torch.nn.Linear(64, 8))


def sharded(seed: int, **options: object) -> FullyShardedDataParallel:
    """The sharded model: modules of 10,000 parameters or more are units; the rest belongs to the outermost unit."""
    policy = functools.partial(default_auto_wrap_policy, min_num_params=10_000)
    with enable_wrap(auto_wrap_policy=policy, wrapper_cls=FullyShardedDataParallel, **options):
        return FullyShardedDataParallel(auto_wrap(model(seed)), **options)


def train(student: FullyShardedDataParallel, optimizer: torch.optim.Optimizer, fp8: bool) -> list[float]:
    teacher = model(seed=0)
    scaler = ShardedGradScaler(enabled=not fp8)
    torch.manual_seed(100 + dist.get_rank())  # each rank has its own part of the data
    losses = []
    for _ in range(150):
        inputs = torch.randn(32, 32)
        optimizer.zero_grad()
        with te.fp8_autocast(fp8_group=dist.group.WORLD) if fp8 else nullcontext():
            loss = mse_loss(student(inputs).float(), teacher(inputs).detach())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        student.clip_grad_norm_(1.0)  # the norm of all gradients of all ranks
        scaler.step(optimizer)  # an Inf on one rank makes all ranks skip
        scaler.update()
        losses.append(loss.item())
    return losses


def main() -> None:
    if "RANK" not in os.environ:
        raise SystemExit(
            "fsdp: expected two processes: .venv/bin/torchrun --standalone --nproc-per-node 2 examples/shard/fsdp.py"
        )
    torch.set_num_threads(1)  # the model is too small for more
    dist.init_process_group("gloo")
    for name, options in (("fp16", {"mixed_precision": True}), ("fp8", {})):
        student = sharded(seed=1, **options)
        optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)  # its parameters are this rank's shards
        losses = train(student, optimizer, fp8=name == "fp8")

        run = [tempfile.mkdtemp()]
        dist.broadcast_object_list(run)
        state = {"model": student.sharded_state_dict(), "optimizer": student.sharded_optim_state_dict(optimizer)}
        CheckpointSaver(run[0]).save(len(losses), state)
        latest = open_latest_checkpoint(run[0])
        resumed = sharded(seed=2, **options)
        resumed_optimizer = torch.optim.AdamW(resumed.parameters())
        resumed.load_sharded_state_dict(latest)
        resumed.load_sharded_optim_state_dict(resumed_optimizer, latest)
        expected = student.state_dict()  # whole values on every rank
        if not all(torch.equal(value, expected[key]) for key, value in resumed.state_dict().items()):
            raise SystemExit("expected the model that was saved")
        if dist.get_rank() == 0:
            share = sum(p.numel() for p in student.parameters()) / sum(p.numel() for p in model(seed=0).parameters())
            print(
                f"{name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, {share:.0%} of the parameters here, step {latest.step} loaded"
            )
        if not losses[-1] < 0.5 * losses[0]:
            raise SystemExit("expected the loss to fall to less than half")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
