"""Holds what `plimsoll shard-plan` says against what `plimsoll train --shard` measures, at 1, 2, 4 and 8 processes of this machine:

    .venv/bin/python bench/shard_plan.py [--build build] [--world 1,2,4,8] [--cases ddp:fp32,zero1:fp32,zero2:fp32,fsdp:fp32,fsdp:fp8]

Memory is the peak of the first process's tensors; bytes are those that it sends over TCP in a step. The plan is given the speed of
one process, divided by the processes that share a core, and the rate and latency of Gloo, as measured here first.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[1]
MODEL = ["--layers=8", "--dim=576", "--heads=9", "--context=64", "--batch={batch}"]
STEPS = 4
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def torchrun(ranks: int, *command: str | Path) -> str:
    launch = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run([*launch, *command], capture_output=True, text=True, env=ENVIRONMENT)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout


def train(program: Path, model: list[str], ranks: int, shard: str, recipe: str, texts: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        sizes = [argument.format(batch=texts * ranks) for argument in model]
        plan = [f"--steps={STEPS}", "--warmup=1", "--eval-windows=1", "--save-every=0", "--threads=1", "--log-every=1"]
        arguments = ["train", "--data", ROOT / "docs", "--out", folder, *sizes, *plan, f"--shard={shard}", f"--recipe={recipe}"]
        torchrun(ranks, program, *arguments)
        lines = [json.loads(line) for line in (Path(folder) / "train.jsonl").read_text().splitlines()]
    rate = statistics.median(line["tokens_per_s"] for line in lines if "step" in line)
    return {"memory": lines[-1]["peak_tensor_bytes"], "bytes": lines[-1]["sent_bytes"], "tokens/s": rate, "rss": lines[-1]["peak_rss_bytes"]}


def plan(program: Path, model: list[str], ranks: int, shard: str, recipe: str, texts: int, given: list[str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        sizes = [argument.format(batch=texts) for argument in model]
        command = [program, "shard-plan", *sizes, f"--shard={shard}", f"--recipe={recipe}", f"--world={ranks}", *given]
        subprocess.run([*command, f"--json={path}"], check=True, capture_output=True)
        run = json.loads(path.read_text())["runs"][0]
    return {"memory": run["memory_bytes"]["total"], "bytes": sum(run["sent_bytes"].values()), "tokens/s": run["tokens_per_second"]}


def network() -> None:
    """In each process: Gloo's GB/s of a rank and microseconds of a message, by all_gathers of two sizes."""
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    seconds = []
    for size in (1 << 22, 256):  # elements of each rank
        mine, all_of_them = torch.ones(size), torch.empty(size * ranks)
        times = []
        for _ in range(8):
            dist.barrier()
            start = time.perf_counter()
            dist.all_gather_into_tensor(all_of_them, mine)
            times.append(time.perf_counter() - start)
        seconds.append(statistics.median(times))
    if dist.get_rank() == 0:
        rate = 4 * (1 << 22) * (ranks - 1) / (seconds[0] - seconds[1])
        print(json.dumps({"bandwidth": rate / 1e9, "latency": seconds[1] / (ranks - 1) * 1e6}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--world", type=lambda text: [int(one) for one in text.split(",")], default=[1, 2, 4, 8])
    parser.add_argument("--cases", default="ddp:fp32,zero1:fp32,zero2:fp32,fsdp:fp32,fsdp:fp8")
    parser.add_argument("--texts", type=int, default=4, help="sequences of each process in a step")
    parser.add_argument("--network", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.network:
        return network()
    program, cores = options.build / "bin" / "plimsoll", len(os.sched_getaffinity(0))
    given = {}
    for ranks in options.world:
        found = {"bandwidth": 1.0, "latency": 1.0}
        if ranks > 1:
            found = json.loads(torchrun(ranks, sys.executable, __file__, "--network").splitlines()[-1])
            print(f"Gloo, {ranks} processes: {found['bandwidth']:.2f} GB/s, {found['latency']:.0f} us a message")
        given[ranks] = [f"--bandwidth={found['bandwidth']}", f"--latency={found['latency']}"]
    print(f"{'':28}{'peak MB of tensors':>30}{'MB sent a step':>30}{'tokens/s of all':>30}{'of ddp':>8}{'RSS':>6}")
    replicated = {}
    for case in options.cases.split(","):
        shard, recipe = case.split(":")
        alone = train(program, MODEL, 1, "none", recipe, options.texts)["tokens/s"]
        for ranks in options.world:
            measured = train(program, MODEL, ranks, shard, recipe, options.texts)
            speed = alone / max(1, ranks / cores)
            planned = plan(program, MODEL, ranks, shard, recipe, options.texts, [*given[ranks], f"--tokens-per-second={speed}"])
            replicated.setdefault(ranks, measured["memory"])
            row = f"{shard:6} {recipe:5} {ranks} processes  "
            for key, unit in (("memory", 1e6), ("bytes", 1e6), ("tokens/s", 1)):
                ratio = planned[key] / measured[key] if measured[key] else float("nan")
                row += f"{planned[key] / unit:10.1f} {measured[key] / unit:10.1f} {ratio:6.2f}  "
            print(row + f"{measured['memory'] / replicated[ranks]:7.2f} {measured['rss'] / 1e6:6.0f}", flush=True)


if __name__ == "__main__":
    main()
