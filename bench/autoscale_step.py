#!/usr/bin/env python3
"""What autoscale costs: the host's time of an operator on a few elements, and a training step of a Transformer encoder.

An operator's time is the least of several rounds, of torch's on FP32, torch's on FP16 and ours in turn. A step is forward, backward
and AdamW, of FP32, of torch's bf16 autocast and of autoscaled FP16 in turn; the median of the rounds.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
import plimsoll  # noqa: E402
import plimsoll.autoscale as autoscale  # noqa: E402

OPERATORS = {
    "relu": lambda x: x.relu(),
    "mul": lambda x: x * x,
    "add": lambda x: x + x,
    "mm": lambda x: x @ x,
    "view": lambda x: x.view(64),
    "t": lambda x: x.t(),
    "sum": lambda x: x.sum(),
    "mul by a number": lambda x: x * 0.37,
    "gelu": lambda x: F.gelu(x),
}
CALLS = 2000


def call_time(operator, x: torch.Tensor) -> float:
    """Seconds of this thread's own CPU time."""
    start = time.thread_time()
    for _ in range(CALLS):
        operator(x)
    return (time.thread_time() - start) / CALLS


def operators(rounds: int) -> None:
    x = torch.randn(8, 8)
    contestants = [x, x.half(), autoscale.as_scaled(x)]
    print("| operator, us | torch fp32 | torch fp16 | autoscale | over fp16 |\n|---|---|---|---|---|")
    with torch.no_grad():
        for name, operator in OPERATORS.items():
            times = [min(row) * 1e6 for row in zip(*[[call_time(operator, y) for y in contestants] for _ in range(rounds)])]
            print(f"| {name} | {' | '.join(f'{t:.2f}' for t in times)} | {times[2] - times[1]:+.2f} |", flush=True)


class Encoder(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, x):
        return F.cross_entropy(self.head(self.layers(self.embedding(x))).flatten(0, 1), x.flatten())


def stepper(name: str, width: int):
    torch.manual_seed(0)
    model = Encoder(width)
    if name == "autoscale fp16":
        model = plimsoll.autoscale(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randint(256, (4, 128))

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "bf16 autocast"):
            loss = model(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def steps(width: int, rounds: int) -> None:
    run = {name: stepper(name, width) for name in ("fp32", "bf16 autocast", "autoscale fp16")}
    times = {name: [] for name in run}
    for index in range(rounds + 1):
        for name, step in run.items():
            start = time.thread_time()
            step()
            if index > 0:  # the first warms up
                times[name].append(time.thread_time() - start)
    median = {name: statistics.median(row) for name, row in times.items()}
    print(f"\nstep of 2 layers of {width}, 512 tokens, CPU ms (times fp32)")
    for name, seconds in median.items():
        print(f"  {name:15} {1000 * seconds:8.1f}  {seconds / median['fp32']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    operators(options.rounds)
    steps(options.width, options.rounds)


if __name__ == "__main__":
    main()
