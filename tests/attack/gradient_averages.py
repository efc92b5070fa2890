"""Passes in random order under ShardedDataParallel on two ranks, some of them broken off, against the unsharded model.

A round freezes some layers, makes one to four backward passes (under no_sync() or not; with reentrant checkpoints or
without; through forward() or another method), breaks some of them off with an exception, and then compares the gradients
with the mean of what each rank has by itself.
"""

import contextlib
import copy
import datetime
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from common import Attack, library_environment

MINUTES = 1
RANKS = 2
LAYERS = 4
ROUNDS = 4000


def run_rank(rank, folder, seed, seconds):
    import torch
    import torch.distributed as dist
    from plimsoll.shard import OSS, ShardedDataParallel
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(LAYERS))
            self.breaks = None  # before the gradients of this layer

        def body(self, x, layers):
            for index in layers:
                x = torch.tanh(self.layers[index](x))
                if index == self.breaks and x.requires_grad:
                    x.register_hook(self.fail)
            return x

        def fail(self, _):
            raise RuntimeError("broken off")

        def forward(self, x, parts):
            for layers, again in parts:
                x = checkpoint(self.body, x, layers, use_reentrant=True) if again else self.body(x, layers)
            return x

        def energy(self, x, parts):
            return self(x, parts).square().sum()

    def backward(model, case):
        generator = torch.Generator().manual_seed(case["data"] * RANKS + rank)
        x = torch.randn(3, 5, generator=generator, requires_grad=True)
        loss = model.energy(x, case["parts"]) if case["method"] else model(x, case["parts"]).square().sum()
        if loss.requires_grad:
            loss.backward()

    def compare(model, alone, optimizer):
        errors = []  # all are looked at, because each is a collective
        for (name, mine), other in zip(model.named_parameters(), alone.parameters(), strict=True):
            has = torch.tensor(float(other.grad is not None))
            mean = torch.zeros_like(other) if other.grad is None else other.grad / RANKS
            dist.all_reduce(has)
            dist.all_reduce(mean)
            owned = optimizer.param_to_rank[mine] == rank and has > 0
            if owned != (mine.grad is not None):
                errors.append(f"{name}: expected {'a gradient' if owned else 'none'} on rank {rank}")
            elif owned and not torch.allclose(mine.grad, mean, rtol=1e-5, atol=1e-7):
                errors.append(f"{name}: gradients differ by {(mine.grad - mean).abs().max():.3g}")
        return "; ".join(errors)

    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS, timeout=limit)
    deadline = datetime.datetime.now() + datetime.timedelta(seconds=seconds)
    dice = random.Random(seed)  # the same on all ranks
    torch.manual_seed(seed)
    for number in range(ROUNDS):
        if number % 50 == 0:
            model = Model()
            alone = copy.deepcopy(model)
            optimizer = OSS(model.parameters(), torch.optim.SGD, lr=0.1)
            size = dice.choice([0, 40, 2**23])
            parallel = ShardedDataParallel(model, optimizer, reduce_buffer_size=size, warn_on_trainable_params_changed=False)
        cases = round_of(dice)
        error = ""
        try:
            frozen = cases[0]["frozen"]
            for each in (model, alone):
                for index, layer in enumerate(each.layers):
                    layer.requires_grad_(index not in frozen)
                each.zero_grad()
            if any(case["method"] for case in cases):  # forward() may not be there to notice
                parallel.refresh_trainable()
            for case in cases:
                if case["breaks"] is not None:
                    model.breaks = case["breaks"]
                    try:
                        backward(parallel, case)
                    except RuntimeError as broken:
                        if "broken off" not in str(broken):
                            raise
                    model.breaks = None
                    for each in (model, alone):
                        each.zero_grad()
                if case["waits"]:
                    with parallel.no_sync():
                        backward(parallel, case)
                else:
                    backward(parallel, case)
                backward(alone, case)
            error = compare(model, alone, optimizer)
        except Exception as other:  # what no round should raise
            error = f"{type(other).__name__}: {other}"
        late = torch.tensor(float(datetime.datetime.now() > deadline))
        dist.all_reduce(late)
        print(json.dumps({"round": number, "error": error and f"{error}; buckets of {size}; {json.dumps(cases)}"}), flush=True)
        if late > 0:
            break
    dist.destroy_process_group()


def round_of(dice):
    """The passes of one round. The last one travels, and those under no_sync() come first."""
    frozen = dice.sample(range(LAYERS), dice.choice([0, 0, 1, 2]))
    passes = dice.randint(1, 4)
    waiting = dice.randint(0, passes - 1)
    cases = []
    broken = False
    for number in range(passes):
        parts = []
        for _ in range(dice.randint(1, 3)):
            layers = sorted(dice.sample(range(LAYERS), dice.randint(1, LAYERS)))
            parts.append((layers, dice.random() < 0.5))
        if number == passes - 1:
            parts.append((list(range(LAYERS)), False))  # every rank has a gradient that travels
        # A break clears what came before, so that passes under no_sync() may follow it.
        breaks = dice.randrange(LAYERS) if dice.random() < 0.3 and not broken else None
        broken = broken or breaks is not None
        cases.append(
            {
                "frozen": frozen,
                "parts": parts,
                "breaks": breaks,
                "waits": number < waiting,
                "method": dice.random() < 0.3,
                "data": dice.randrange(10**6),
            }
        )
    return cases


def main():
    attack = Attack("passes in random order under ShardedDataParallel")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as files:
        environment = {**library_environment(), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, __file__, "--rank"]
        outputs = [files.enter_context(open(Path(folder, f"{rank}.txt"), "w+")) for rank in range(RANKS)]
        processes = [
            subprocess.Popen(
                [*command, str(rank), folder, str(attack.seed), str(attack.seconds_left())],
                env=environment,
                stdout=output,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, output in enumerate(outputs)
        ]
        for rank, (process, output) in enumerate(zip(processes, outputs, strict=True)):
            said = process.communicate()[1]
            output.seek(0)
            lines = [json.loads(line) for line in output.read().splitlines()]
            attack.count = max(attack.count, len(lines))
            for line in lines:
                if line["error"]:
                    attack.fail(f"rank {rank}, round {line['round']}: {line['error']}")
            if process.returncode:
                attack.fail(f"rank {rank} ended with {process.returncode}: {said[-1500:]}")
    sys.exit(attack.finish())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        run_rank(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
    else:
        main()
