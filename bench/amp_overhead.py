"""Cost of an operator under plimsoll.amp.autocast beyond its cost under torch.autocast, in turn in one process, on tensors too small to matter.

    .venv/bin/python bench/amp_overhead.py [--rounds 31] [--json FILE]

Prints medians in us of CPU time an operator, of the operators that torch's CPU autocast knows itself and of those that the precision table adds, and
what opening and closing a scope costs. FP32 goes in, so that operators of fp32 cast nothing.
"""

import argparse
import statistics
import time

import json_file
import torch
from plimsoll.amp import autocast

CALLS = 200
T = torch.ops.aten


def cases():
    x, vector = torch.rand(4, 4), torch.rand(4)
    return {
        "mm": lambda: torch.mm(x, x),
        "linear": lambda: torch.nn.functional.linear(x, x),
        "mse_loss": lambda: torch.nn.functional.mse_loss(x, x),
        "add": lambda: torch.add(x, x),
        "exp": lambda: torch.exp(x),
        "sum": lambda: torch.sum(x),
        "pow": lambda: torch.pow(x, 2),
        "softmax": lambda: T.softmax.int(x, 1),
        "layer_norm": lambda: torch.nn.functional.layer_norm(x, (4,)),
        "dot": lambda: torch.dot(vector, vector),
    }


def microseconds(call):
    start = time.thread_time()
    for _ in range(CALLS):
        call()
    return (time.thread_time() - start) / CALLS * 1e6


def scope_of(kind):
    def run():
        with kind("cpu", torch.float16):
            pass

    return run


def medians(rounds):
    """{name: (torch's, ours)}."""
    kinds = (torch.autocast, autocast)
    times: dict[str, dict[type, list[float]]] = {}
    for _ in range(rounds):
        for name, call in cases().items():
            for kind in kinds:
                with kind("cpu", torch.float16):
                    call()
                    times.setdefault(name, {}).setdefault(kind, []).append(microseconds(call))
        for kind in kinds:
            times.setdefault("with autocast", {}).setdefault(kind, []).append(microseconds(scope_of(kind)))
    return {name: tuple(statistics.median(by_kind[kind]) for kind in kinds) for name, by_kind in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--json", help="write the table to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = medians(args.rounds)
    print(f"{'us an operator':16}{'torch':>8}{'ours':>8}{'more':>8}")
    for name, (torchs, ours) in rows.items():
        print(f"{name:16}{torchs:8.2f}{ours:8.2f}{ours - torchs:+8.2f}")
    if args.json:
        json_file.write(args.json, {name: {"torch_us": torchs, "ours_us": ours} for name, (torchs, ours) in rows.items()})


if __name__ == "__main__":
    main()
