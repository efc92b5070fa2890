"""Times one training step of Plimsoll (each recipe) and of PyTorch, in turn: the same model, batch, threads, optimizer and clipping.

    .venv/bin/python bench/gpt_step.py [--rounds 5] [--json FILE] [--contestants fp32,fp8,torch-bf16,...]

Every contestant is a process that waits on its standard input, so that only one runs at a time and each has the memory settings under test.
Prints medians over the rounds, tokens/s, the ratio to PyTorch's eager bf16 autocast, and the bytes that autograd saved.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# glibc keeps large blocks instead of returning them to the system after each operator; torch backs them with huge pages.
TUNED = {
    "THP_MEM_ALLOC_ENABLE": "1",
    "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592:glibc.malloc.top_pad=268435456",
}
TORCH = {
    "torch-fp32": (["--dtype", "fp32"], {}),
    "torch-bf16": (["--dtype", "bf16"], {}),
    "torch-bf16-compiled": (["--dtype", "bf16", "--compile"], {}),
    "torch-bf16-tuned": (["--dtype", "bf16"], TUNED),
    "torch-fp32-tuned": (["--dtype", "fp32"], TUNED),
}
RECIPES = ("fp32", "bf16", "fp8", "fp8-current", "fp8-block", "mxfp8")
PEER = "torch-bf16"


class Contestant:
    def __init__(self, name, args):
        shape = [f"--{key}={getattr(args, key)}" for key in ("layers", "dim", "heads", "context", "batch", "vocabulary", "threads")]
        environment = dict(os.environ)
        if name in TORCH:
            options, extra = TORCH[name]
            command = [sys.executable, str(ROOT / "bench" / "torch_gpt_worker.py"), *options, *shape]
            environment.update(extra)
        else:
            command = [str(Path(args.build) / "bin" / "gpt_step_worker"), f"--recipe={name}", *shape]
        self.name = name
        self.seconds = []
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.info = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"gpt_step: '{self.name}' ended with exit code {self.process.wait()}")
        return json.loads(line)

    def step(self):
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        self.seconds.append(self.read()["seconds"])

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("layers", 6), ("dim", 384), ("heads", 6), ("context", 256), ("batch", 16), ("vocabulary", 256), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--contestants", default=",".join((*RECIPES, *TORCH)))
    parser.add_argument("--json", help="write the table to this file")
    args = parser.parse_args()

    names = args.contestants.split(",")
    unknown = sorted(set(names) - set(RECIPES) - set(TORCH))
    if unknown:
        parser.error(f"--contestants: expected some of {', '.join((*RECIPES, *TORCH))}, got {', '.join(unknown)}")
    contestants = []
    for name in names:
        contestants.append(Contestant(name, args))
        print(f"{name}: ready", file=sys.stderr)
    for _ in range(args.rounds):
        for contestant in contestants:
            contestant.step()
    for contestant in contestants:
        contestant.close()

    medians = {c.name: statistics.median(c.seconds) for c in contestants}
    rows = []
    print(f"{'step':22}{'median s':>10}{'tokens/s':>10}{'x ' + PEER:>14}{'saved MB':>10}")
    for contestant in contestants:
        median = medians[contestant.name]
        row = {
            "name": contestant.name,
            "median_seconds": median,
            "seconds": contestant.seconds,
            "tokens_per_s": args.batch * args.context / median,
            "speed_over_peer": medians[PEER] / median if PEER in medians else None,
            "saved_bytes": contestant.info["saved_bytes"],
        }
        rows.append(row)
        ratio = f"{row['speed_over_peer']:.2f}" if row["speed_over_peer"] else "-"
        saved = f"{row['saved_bytes'] / 1e6:.1f}" if row["saved_bytes"] else "-"
        print(f"{row['name']:22}{median:10.3f}{row['tokens_per_s']:10.0f}{ratio:>14}{saved:>10}")
    if args.json:
        text = json.dumps({"arguments": vars(args), "rows": rows}, indent=1)
        beside = Path(args.json + ".part")
        beside.write_text(text + "\n")
        beside.replace(args.json)


if __name__ == "__main__":
    main()
