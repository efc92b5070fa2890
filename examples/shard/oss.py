"""ZeRO-2 in fp16: each parameter's optimizer state and gradient live on one rank, and all ranks share the loss scale. At the end a
checkpoint that any number of ranks loads.

    .venv/bin/torchrun --standalone --nproc-per-node 2 examples/shard/oss.py
"""

import os
import tempfile

import torch
import torch.distributed as dist
from plimsoll.amp import autocast
from plimsoll.shard import OSS, CheckpointSaver, ShardedDataParallel, ShardedGradScaler, open_latest_checkpoint
from torch.nn.functional import mse_loss


def model(seed: int) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.Linear(64, 8))


def main() -> None:
    if "RANK" not in os.environ:
        raise SystemExit("oss: expected two processes: .venv/bin/torchrun --standalone --nproc-per-node 2 examples/shard/oss.py")
    torch.set_num_threads(1)  # the model is too small for more
    dist.init_process_group("gloo")
    teacher, student = model(seed=0), model(seed=1)
    optimizer = OSS(student.parameters(), torch.optim.AdamW, lr=3e-3)  # holds the states of this rank's share
    parallel = ShardedDataParallel(student, optimizer)  # each gradient goes to the rank that has its state
    scaler = ShardedGradScaler()  # an Inf on one rank makes all ranks skip
    torch.manual_seed(100 + dist.get_rank())  # each rank has its own part of the data
    losses = []
    for _ in range(200):
        inputs = torch.randn(32, 32)
        optimizer.zero_grad()
        with autocast("cpu", torch.float16):
            loss = mse_loss(parallel(inputs), teacher(inputs).detach())
        scaler.scale(loss).backward()
        scaler.step(optimizer, max_norm=1.0)  # max_norm is that of all ranks' gradients
        scaler.update()
        losses.append(loss.item())

    # Every rank writes its share of the model.
    run = [tempfile.mkdtemp()]
    dist.broadcast_object_list(run)
    CheckpointSaver(run[0]).save(200, {"model": student.state_dict()}, {"scaler": scaler.state_dict()})
    latest = open_latest_checkpoint(run[0])
    resumed = model(seed=2)
    resumed.load_state_dict(latest.section("model"))
    resumed_optimizer = OSS(resumed.parameters(), torch.optim.AdamW, lr=3e-3)
    resumed_optimizer.load_state_dict(optimizer.state_dict(all_ranks=True))  # each rank keeps its share
    inputs = torch.randn(4, 32)
    if not torch.equal(resumed(inputs), student(inputs)):
        raise SystemExit("expected the model that was saved")
    if dist.get_rank() == 0:
        print(f"oss: loss {losses[0]:.4f} -> {losses[-1]:.4f}, loss scale {scaler.get_scale():g}, step {latest.step} loaded")
    if not losses[-1] < 0.5 * losses[0]:
        raise SystemExit("expected the loss to fall to less than half")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
