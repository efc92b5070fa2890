#!/usr/bin/env python3
"""Trains 784-1024-1024-10 ReLU networks by SGD in FP32, in plain FP16 and in autoscaled FP16, over a grid of initial sizes and
learning rates, and prints the accuracy of each on held-out data.

The networks, batches and steps of a cell are the same for all three. Plain FP16 has FP16 weights, gradients and steps.
Data: scikit-learn's digits, resized to 28 x 28 (`pip install scikit-learn`), or ten generated classes.
"""

import argparse
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
import plimsoll

CONTESTANTS = ("fp32", "fp16", "autoscale")
HELD_OUT = 0.2


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    images = F.interpolate(torch.tensor(x).float().reshape(-1, 1, 8, 8) / 16, size=(28, 28), mode="bilinear")
    return images.flatten(1), torch.tensor(y)


def generated() -> tuple[torch.Tensor, torch.Tensor]:
    """Ten Gaussian clouds whose centres lie close enough to be confused."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (4000,), generator=generator)
    centres = torch.randn(10, 784, generator=generator) * 0.15
    return centres[labels] + torch.randn(4000, 784, generator=generator), labels


DATA = {"digits": digits, "generated": generated}


def split(x: torch.Tensor, y: torch.Tensor):
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    held = int(len(y) * HELD_OUT)
    return x[order[held:]], y[order[held:]], x[order[:held]], y[order[:held]]


def network(init: float) -> nn.Sequential:
    """Weights of rms init / sqrt(inputs)."""
    torch.manual_seed(2)
    layers = [nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=init / layer.in_features**0.5)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def accuracy(contestant: str, data, init: float, rate: float, options: argparse.Namespace) -> float:
    x, y, held_x, held_y = data
    model = network(init)
    dtype = torch.float32
    if contestant == "fp16":
        model, dtype = model.half(), torch.float16
    if contestant == "autoscale":
        model = plimsoll.autoscale(model, rounding=options.rounding)  # type: ignore[operator]  # a module that is called
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for epoch in range(options.epochs):
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(100 + epoch))
        for batch in order.split(options.batch)[: len(y) // options.batch]:
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch].to(dtype)), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        right = model(held_x.to(dtype)).argmax(1) == held_y
    return 100 * right.float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=DATA, default="digits")
    parser.add_argument("--init", type=float, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rate", type=float, nargs="+", default=[5e-4, 1e-3, 4e-3, 1.6e-2])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounding", choices=("nearest", "stochastic", "remainder"), default="remainder")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = split(*DATA[options.data]())
    print(f"{options.data}: {len(data[1])} to train on, {len(data[3])} held out; accuracy in percent")
    print("| init | rate | fp32 | fp16 | autoscale | autoscale - fp32 |\n|---|---|---|---|---|---|")
    for init in options.init:
        for rate in options.rate:
            reached = {name: accuracy(name, data, init, rate, options) for name in CONTESTANTS}
            cells = [f"{reached[name]:.1f}" for name in CONTESTANTS] + [f"{reached['autoscale'] - reached['fp32']:+.1f}"]
            print(f"| {init:g} | {rate:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
