#!/usr/bin/env python3
"""Cost of autoscale: the host's time of an operator on a few elements, and a training step of a Transformer encoder.

An operator's time is the least of several rounds, of torch's on FP32, torch's on FP16 and ours in turn. A step is forward, backward
and AdamW of the same model under each method in turn; the median of the rounds.
"""

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
import plimsoll
import plimsoll.autoscale as autoscale
from plimsoll.amp import autocast
from plimsoll.common.recipe import DelayedScaling

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
            times = [
                min(row) * 1e6
                for row in zip(*[[call_time(operator, y) for y in contestants] for _ in range(rounds)], strict=True)
            ]
            print(f"| {name} | {' | '.join(f'{t:.2f}' for t in times)} | {times[2] - times[1]:+.2f} |", flush=True)


class Encoder(nn.Module):
    """As a user of torch writes it."""

    def __init__(self, width: int):
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, x):
        return F.cross_entropy(self.head(self.layers(self.embedding(x))).flatten(0, 1), x.flatten())


class Gpt2(nn.Module):
    """Hugging Face's."""

    def __init__(self, width: int):
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        shape = {"n_embd": width, "n_layer": 2, "n_head": width // 64, "n_positions": 128, "vocab_size": 256}
        dropped = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        self.model = GPT2LMHeadModel(GPT2Config(**shape, **dropped, bos_token_id=0, eos_token_id=0))

    def forward(self, x):
        return self.model(input_ids=x, labels=x).loss


MODELS = {"encoder": Encoder, "gpt2": Gpt2}


def fp8_recipe(model: nn.Module) -> nn.Module:
    plimsoll.convert(model, recipe=DelayedScaling())
    return model


# Change of the model under each method, and the scope of its forward pass.
SCALED: Callable[..., Any] = plimsoll.autoscale  # type: ignore[assignment]  # a module that is called
METHODS: dict[str, tuple[Callable[[Any], Any], Callable[[], contextlib.AbstractContextManager[Any]]]] = {
    "fp32": (lambda model: model, contextlib.nullcontext),
    "torch bf16 autocast": (lambda model: model, lambda: torch.autocast("cpu", torch.bfloat16)),
    "amp fp16": (lambda model: model, lambda: autocast("cpu", torch.float16)),
    "fp8 recipe": (fp8_recipe, contextlib.nullcontext),
    "autoscale fp16": (SCALED, contextlib.nullcontext),
    "autoscale bf16": (lambda model: SCALED(model, dtype=torch.bfloat16), contextlib.nullcontext),
    "autoscale fp8": (lambda model: SCALED(model, matmul_format="hybrid"), contextlib.nullcontext),
}


def stepper(method: str, model_name: str, width: int):
    torch.manual_seed(0)
    prepare, scope = METHODS[method]
    model = prepare(MODELS[model_name](width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randint(256, (4, 128))

    def step():
        with scope():
            loss = model(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def steps(model_name: str, width: int, rounds: int, methods: list[str]) -> None:
    run = {name: stepper(name, model_name, width) for name in methods}
    times: dict[str, list[float]] = {name: [] for name in run}
    for index in range(rounds + 1):
        for name, step in run.items():
            start = time.thread_time()
            step()
            if index > 0:  # the first warms up
                times[name].append(time.thread_time() - start)
    median = {name: statistics.median(row) for name, row in times.items()}
    first = next(iter(median))
    print(f"\nstep of {model_name}, 2 layers of {width}, 512 tokens, CPU ms (times {first})")
    for name, seconds in median.items():
        print(f"  {name:20} {1000 * seconds:8.1f}  {seconds / median[first]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--models", choices=MODELS, nargs="*", default=list(MODELS), help="none: operators alone")
    parser.add_argument("--methods", choices=METHODS, nargs="+", default=list(METHODS))
    parser.add_argument("--no-operators", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.no_operators:
        operators(options.rounds)
    for name in options.models:
        steps(name, options.width, options.rounds, options.methods)


if __name__ == "__main__":
    main()
