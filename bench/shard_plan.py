"""Holds what `plimsoll shard-plan` says against what `plimsoll train --shard` measures, at 1, 2, 4 and 8 processes of this machine:

    .venv/bin/python bench/shard_plan.py [--build build] [--world 1,2,4,8] [--cases ddp:fp32,zero1:fp32,zero2:fp32,fsdp:fp32,fsdp:fp8]

Memory is the peak of the first process's tensors; bytes are those that it sends over TCP in a step. Times are of the CPU: all that
processes of one machine do, sending included, takes its cores, and what else runs there is left out. The plan is given the speed of
one process, with as many beside it as there are cores for, and the rates of memory and of the mode's collectives over Gloo, all
measured first. `wall` is what training saw.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[1]
MODEL = ["--layers=8", "--dim=576", "--heads=9", "--context=64", "--batch={batch}"]
STEPS = 5
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def torchrun(ranks: int, *command: str | Path) -> str:
    launch = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run([*launch, *command], capture_output=True, text=True, env=ENVIRONMENT)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout


def sizes_of(model: list[str], texts: int) -> list[str]:
    return [argument.format(batch=texts) for argument in model]


def arguments(folder: str | Path, model: list[str], texts: int, shard: str, recipe: str) -> list[str | Path]:
    plan = [f"--steps={STEPS}", "--warmup=1", "--eval-windows=1", "--save-every=0", "--threads=1", "--log-every=1"]
    sizes = sizes_of(model, texts)
    return ["train", "--data", ROOT / "docs", "--out", folder, *sizes, *plan, f"--shard={shard}", f"--recipe={recipe}"]


def read_log(folder: str | Path) -> dict[str, float]:
    lines = [json.loads(line) for line in (Path(folder) / "train.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "step" in line]
    return {
        "memory": lines[-1]["peak_tensor_bytes"],
        "bytes": lines[-1]["sent_bytes"],
        "rss": lines[-1]["peak_rss_bytes"],
        "cpu_s": statistics.median(line["cpu_s"] for line in steps),
        "wall": statistics.median(line["tokens_per_s"] for line in steps),
    }


def train(program: Path, model: list[str], ranks: int, shard: str, recipe: str, texts: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        torchrun(ranks, program, *arguments(folder, model, texts * ranks, shard, recipe))
        return read_log(folder)


@functools.cache
def alone(program: Path, beside: int, recipe: str, texts: int) -> float:
    """CPU seconds of a step of one process, `beside` of which run at once."""
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder) / str(index) for index in range(beside)]
        commands = [[program, *arguments(one, MODEL, texts, "none", recipe)] for one in folders]
        running = [subprocess.Popen(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT) for command in commands]
        if any([process.wait() for process in running]):
            raise SystemExit("shard_plan: a process alone failed")
        return statistics.mean(read_log(one)["cpu_s"] for one in folders)


def plan(program: Path, model: list[str], ranks: int, shard: str, recipe: str, texts: int, given: list[str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        command = [
            str(program),
            "shard-plan",
            *sizes_of(model, texts),
            f"--shard={shard}",
            f"--recipe={recipe}",
            f"--world={ranks}",
        ]
        subprocess.run([*command, *given, f"--json={path}"], check=True, capture_output=True)
        run = json.loads(path.read_text())["runs"][0]
    return {
        "memory": run["memory_bytes"]["total"],
        "bytes": sum(run["sent_bytes"].values()),
        "tokens/s": run["tokens_per_second"],
    }


def collectives(shard: str, part: int) -> tuple[list[Callable[[], object]], int]:
    """Collectives of a way of sharding, in the mode's proportions, and how many messages of `part` elements a rank sends in
    all."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    whole, other, mine = torch.ones(part * ranks), torch.empty(part * ranks), torch.ones(part)

    def to_owner(owner: int) -> None:
        sent = [part if to == owner else 0 for to in range(ranks)]
        received = [part if rank == owner else 0] * ranks
        dist.all_to_all_single(other[: sum(received)], mine, received, sent)

    all_reduce = [lambda: dist.all_reduce(whole)]
    broadcast = [lambda: [dist.broadcast(mine, root) for root in range(ranks)]]

    def to_each_owner() -> None:
        for root in range(ranks):
            to_owner(root)

    reduce = [to_each_owner]
    gather = [lambda: dist.all_gather_into_tensor(whole, mine)]
    exchange = [lambda: dist.all_to_all_single(other, whole)]
    calls, times_sent = {
        "ddp": (all_reduce, 2),
        "zero1": (all_reduce + broadcast, 3),
        "zero2": (reduce + broadcast, 2),
        "fsdp": (gather + gather + exchange, 3),
    }[shard]
    return calls, times_sent * (ranks - 1)


def cpu_seconds(calls: list[Callable[[], object]], repeats: int = 6) -> float:
    """CPU time of this process, the median of several rounds that all processes begin together."""
    seconds = []
    for _ in range(repeats + 1):
        if dist.is_initialized():
            dist.barrier()
        start = time.process_time()
        for call in calls:
            call()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds[1:])


def rates(shard: str) -> None:
    """In each process: GB/s of memory and, of several, of a rank in Gloo's collectives, and microseconds of a message."""
    found = {}
    source, target = torch.ones(1 << 24), torch.empty(1 << 24)
    found["memory-bandwidth"] = 16 * (1 << 24) / cpu_seconds([lambda: target.copy_(source), lambda: target.div_(2)]) / 1e9
    if int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("gloo")
        ranks = dist.get_world_size()
        part = (1 << 22) // ranks
        large, messages = collectives(shard, part)
        small = cpu_seconds(collectives(shard, 64)[0])
        found["bandwidth"] = messages * 4 * part / (cpu_seconds(large) - small) / 1e9
        found["latency"] = small / messages * 1e6
        all_found: list[Any] = [None] * ranks
        dist.all_gather_object(all_found, found)
        found = {key: statistics.mean(one[key] for one in all_found) for key in found}
    if os.environ["RANK"] == "0":
        print(json.dumps(found))


@functools.cache
def rates_of(shard: str, ranks: int) -> dict[str, float]:
    said = torchrun(ranks, sys.executable, __file__, "--rates", shard)
    return {"bandwidth": 1.0, "latency": 0.0, **json.loads(said.splitlines()[-1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--world", type=lambda text: [int(one) for one in text.split(",")], default=[1, 2, 4, 8])
    parser.add_argument("--cases", default="ddp:fp32,zero1:fp32,zero2:fp32,fsdp:fp32,fsdp:fp8")
    parser.add_argument("--texts", type=int, default=4, help="sequences of each process in a step")
    parser.add_argument("--rates", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rates:
        return rates(options.rates)
    program, cores = options.build / "bin" / "plimsoll", len(os.sched_getaffinity(0))
    tokens = 64 * options.texts
    columns = f"{'peak MB of tensors':>30}{'MB sent a step':>30}{'tokens/s of all':>30}"
    print(f"{'planned, measured, their ratio':30}{columns}{'wall':>7}{'RSS':>6}  given GB/s of memory, network; us")
    for case in options.cases.split(","):
        shard, recipe = case.split(":")
        for ranks in options.world:
            a_core = max(1, ranks / cores)  # processes of it
            step = alone(program, min(ranks, cores), recipe, options.texts)
            found = rates_of(shard, ranks)
            given = {"tokens-per-second": tokens / step, **found}
            given = {key: value * a_core if key == "latency" else value / a_core for key, value in given.items()}
            measured = train(program, MODEL, ranks, shard, recipe, options.texts)
            measured["tokens/s"] = ranks * tokens / (measured["cpu_s"] * a_core)
            said = [f"--{key}={value}" for key, value in given.items()]
            planned = plan(program, MODEL, ranks, shard, recipe, options.texts, ["--one-machine", *said])
            row = f"{shard:6} {recipe:5} {ranks} processes     "
            for key, unit in (("memory", 1e6), ("bytes", 1e6), ("tokens/s", 1)):
                ratio = planned[key] / measured[key] if measured[key] else float("nan")
                row += f"{planned[key] / unit:12.1f} {measured[key] / unit:10.1f} {ratio:6.2f}"
            row += f"{measured['wall']:7.0f} {measured['rss'] / 1e6:5.0f}"
            print(f"{row}  {found['memory-bandwidth']:.1f} {found['bandwidth']:.2f} {found['latency']:.0f}", flush=True)


if __name__ == "__main__":
    main()
