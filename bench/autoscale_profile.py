#!/usr/bin/env python3
"""Time of a training step of autoscale_step.py: ms of each operator under each method, the methods in turn.

Of each call the least wall time of several steps, which a shared machine disturbs little, so the sum is less than a step takes.
"""

import argparse
import collections

import torch
from autoscale_step import METHODS, MODELS, stepper
from torch.profiler import ProfilerActivity, profile

# Operators that are made of others, which are listed instead.
MADE_OF_OTHERS = {
    f"aten::{name}"
    for name in "contiguous cross_entropy_loss dropout embedding layer_norm linear log_softmax matmul nll_loss nll_loss_nd reshape "
    "scaled_dot_product_attention to".split()
}


def calls_under(event, calls: list[tuple[str, float]]) -> None:
    """The operators in the order in which they were called."""
    if event.name.startswith(("aten::", "plimsoll::")) and event.name not in MADE_OF_OTHERS:
        calls.append((event.name, event.time_range.elapsed_us() / 1000))
        return
    if "CppNode" in event.name:  # a backward pass of the library's own, less what it calls of torch
        own = event.time_range.elapsed_us() - sum(child.time_range.elapsed_us() for child in event.cpu_children)
        calls.append((event.name.split("::")[-1].rstrip(">"), own / 1000))
    for child in event.cpu_children:
        calls_under(child, calls)


def calls_of(step) -> list[tuple[str, float]]:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    calls: list[tuple[str, float]] = []
    for event in profiler.events():
        if event.cpu_parent is None:
            calls_under(event, calls)
    return calls


def times(steps: list[list[tuple[str, float]]]) -> dict[str, float]:
    total: dict[str, float] = collections.defaultdict(float)
    for same in zip(*steps, strict=True):
        total[same[0][0]] += min(time for _, time in same)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--model", choices=MODELS, default="gpt2")
    parser.add_argument("--methods", choices=METHODS, nargs="+", default=["fp32", "autoscale bf16", "autoscale fp8"])
    parser.add_argument("--rows", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    run = {method: stepper(method, options.model, options.width) for method in options.methods}
    for step in run.values():
        step()  # warms up
    steps: dict[str, list[list[tuple[str, float]]]] = {method: [] for method in run}
    for _ in range(options.rounds):
        for method, step in run.items():
            steps[method].append(calls_of(step))
    columns = [times(of) for of in steps.values()]
    names = sorted(
        {name for column in columns for name in column}, key=lambda name: -max(column.get(name, 0) for column in columns)
    )
    print(f"| {options.model}, ms | {' | '.join(run)} |\n|---|{'---|' * len(run)}")
    for name in names[: options.rows]:
        print(f"| {name} | {' | '.join(f'{column.get(name, 0):.2f}' for column in columns)} |")
    print(f"| all | {' | '.join(f'{sum(column.values()):.1f}' for column in columns)} |")


if __name__ == "__main__":
    main()
