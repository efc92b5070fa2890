"""Times one training step of Plimsoll (each recipe, and autoscale) and of PyTorch, in turn: the same model, batch, threads, optimizer and clipping.

    .venv/bin/python bench/gpt_step.py [--preset small|gpt2] [--rounds 5] [--one-thread] [--json FILE] [--contestants fp32,fp8,torch-bf16,...]

Prints medians over the rounds, tokens/s, the ratio to the fastest of PyTorch's tuned and compiled runs, peak memory, the bytes that autograd
saved, and with --one-thread how much faster all threads are than one. Large models get a new process at each turn (--restart), because
all of them together would not fit.
"""

import argparse
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path

import json_file
from contestant import TUNED, Contestant

ROOT = Path(__file__).resolve().parent.parent

SHAPE = ("layers", "dim", "heads", "context", "batch", "vocabulary", "tied")
PRESETS = {
    "small": dict(zip(SHAPE, (6, 384, 6, 256, 16, 256, 0), strict=True)),  # 10.9 M parameters
    "gpt2": dict(zip(SHAPE, (12, 768, 12, 512, 4, 50257, 1), strict=True)),  # 124 M
}
TORCH = {
    "torch-fp32": (["--dtype", "fp32"], {}),
    "torch-bf16": (["--dtype", "bf16"], {}),
    "torch-fp16": (["--dtype", "fp16"], {}),  # autocast and GradScaler
    "torch-fp32-tuned": (["--dtype", "fp32"], TUNED),
    "torch-bf16-tuned": (["--dtype", "bf16"], TUNED),
    "torch-fp16-tuned": (["--dtype", "fp16"], TUNED),
    "torch-fp32-compiled": (["--dtype", "fp32", "--compile"], TUNED),
    "torch-bf16-compiled": (["--dtype", "bf16", "--compile"], TUNED),
    "torch-fp32-pooled": (["--dtype", "fp32", "--pooled"], {}),  # under plimsoll::use_caching_allocator()
    "torch-bf16-pooled": (["--dtype", "bf16", "--pooled"], {}),
}
# Variants that a knowing user of PyTorch would run: whichever is fastest is the peer.
PEERS = ("torch-fp32-tuned", "torch-bf16-tuned", "torch-fp32-compiled", "torch-bf16-compiled")
RECIPES = (
    "fp32",
    "bf16",
    "fp16",
    "fp8",
    "fp8-current",
    "fp8-block",
    "mxfp8",
    "nvfp4",
    "mxfp4",
    "autoscale-fp16",
    "autoscale-fp8",
)


@dataclass
class Runner:
    """One contestant at one number of threads."""

    name: str
    command: list[object]
    environment: dict[str, str]
    restart: bool
    seconds: list[float] = field(default_factory=list)
    peak_rss_bytes: int = 0
    saved_bytes: int | None = None
    process: Contestant | None = None

    def start(self):
        if self.process is None:
            self.process = Contestant(self.name, self.command, self.environment)
            self.saved_bytes = self.process.info["saved_bytes"]
        return self.process

    def turn(self):
        result = self.start().ask("step")
        self.seconds.append(result["seconds"])
        self.peak_rss_bytes = max(self.peak_rss_bytes, result["peak_rss_bytes"])
        if self.restart:
            self.stop()

    def stop(self):
        if self.process is not None:
            self.process.close()
            self.process = None

    def median(self):
        return statistics.median(self.seconds)


def runner(name, threads, args):
    shape = [f"--{key}={getattr(args, key)}" for key in SHAPE] + [f"--threads={threads}"]
    if name in TORCH:
        options, environment = TORCH[name]
        options = [*options, f"--library={args.build}/lib/libplimsoll_python.so"]
        command = [sys.executable, ROOT / "bench" / "torch_gpt_worker.py", *options, *shape]
    else:
        environment = {}
        command = [Path(args.build) / "bin" / "gpt_step_worker", f"--recipe={name}", *shape]
    return Runner(name, command, environment, args.restart)


def measure(runners, rounds, restart):
    """In turn: a round is one step of each."""
    try:
        for one in runners if not restart else []:
            one.start()
            print(f"{one.name}: ready", file=sys.stderr)
        for number in range(rounds):
            for one in runners:
                one.turn()
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
    finally:
        for one in runners:
            one.stop()


def rows_of(runners, one_thread, tokens, peers=PEERS):
    """(the fastest of `peers` or None, a row for each contestant)."""
    medians = {one.name: one.median() for one in runners}
    peer = min((name for name in peers if name in medians), key=lambda name: medians[name], default=None)
    single = {one.name: one.median() for one in one_thread}
    rows = []
    for one in runners:
        median = medians[one.name]
        rows.append(
            {
                "name": one.name,
                "median_seconds": median,
                "seconds": one.seconds,
                "tokens_per_s": tokens / median,
                "speed_over_peer": medians[peer] / median if peer else None,
                "speed_over_one_thread": single[one.name] / median if single else None,
                "peak_rss_bytes": one.peak_rss_bytes,
                "saved_bytes": one.saved_bytes,
            }
        )
    return peer, rows


def table(peer, rows):
    def cell(value, form, unit=1):
        return form.format(value / unit) if value is not None else "-"

    lines = [f"{'step':22}{'median s':>10}{'tokens/s':>10}{'x peer':>8}{'x 1 thread':>12}{'peak MB':>9}{'saved MB':>10}"]
    for row in rows:
        lines.append(
            f"{row['name']:22}{row['median_seconds']:10.3f}{row['tokens_per_s']:10.0f}{cell(row['speed_over_peer'], '{:.2f}'):>8}"
            f"{cell(row['speed_over_one_thread'], '{:.2f}'):>12}{row['peak_rss_bytes'] / 1e6:9.0f}{cell(row['saved_bytes'], '{:.1f}', 1e6):>10}"
        )
    lines.append(f"peer: {peer or 'none of ' + ', '.join(PEERS)}")
    return "\n".join(lines)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--preset", choices=PRESETS, default="small")
    for name in SHAPE:
        parser.add_argument(f"--{name}", type=int, help="instead of the preset's")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one-thread", action="store_true", help="time one thread, too")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--restart", action=argparse.BooleanOptionalAction, help="a new process at each turn (default: with gpt2)"
    )
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--contestants", default=",".join((*RECIPES, *TORCH)))
    parser.add_argument("--json", help="write the table to this file")
    args = parser.parse_args()
    for name in SHAPE:
        if getattr(args, name) is None:
            setattr(args, name, PRESETS[args.preset][name])
    if args.restart is None:
        args.restart = args.preset == "gpt2"
    args.contestants = args.contestants.split(",")
    unknown = sorted(set(args.contestants) - set(RECIPES) - set(TORCH))
    if unknown:
        parser.error(f"--contestants: expected some of {', '.join((*RECIPES, *TORCH))}, got {', '.join(unknown)}")
    return args


def main():
    args = parse_arguments()
    runners = [runner(name, args.threads, args) for name in args.contestants]
    measure(runners, args.rounds, args.restart)
    one_thread = [runner(name, 1, args) for name in args.contestants] if args.one_thread else []
    measure(one_thread, args.rounds if one_thread else 0, args.restart)
    peer, rows = rows_of(runners, one_thread, args.batch * args.context)
    print(table(peer, rows))
    if args.json:
        json_file.write(args.json, {"arguments": vars(args), "peer": peer, "rows": rows})


if __name__ == "__main__":
    main()
