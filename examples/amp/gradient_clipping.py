"""Gradient clipping in two ways: after unscale_, when gradients have their true size, and by step with max_norm, in the same pass.

.venv/bin/python examples/amp/gradient_clipping.py
"""

import problem
import torch
from plimsoll.amp import GradScaler, autocast
from torch.nn.functional import mse_loss

MAX_NORM = 0.1


def train(one_pass: bool) -> list[float]:
    model = problem.model(seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = GradScaler("cpu")
    losses, clipped = [], 0
    for inputs, target in problem.batches(200):
        optimizer.zero_grad()
        with autocast("cpu", torch.float16):
            loss = mse_loss(model(inputs), target)
        scaler.scale(loss).backward()
        if one_pass:
            scaler.step(optimizer, max_norm=MAX_NORM)
        else:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            scaler.step(optimizer)
        clipped += scaler.last_report(optimizer).grad_norm > MAX_NORM
        scaler.update()
        losses.append(loss.item())
    print(f"{clipped} of {len(losses)} steps had a gradient norm above {MAX_NORM}")
    return losses


def main() -> None:
    problem.report("unscale_ and clip_grad_norm_", train(one_pass=False))
    problem.report("step(max_norm=...)", train(one_pass=True))


if __name__ == "__main__":
    main()
