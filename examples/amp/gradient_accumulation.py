"""Gradient accumulation: the loss scale stays the same for all parts of a batch; step and update follow the last part.

.venv/bin/python examples/amp/gradient_accumulation.py
"""

import problem
import torch
from plimsoll.amp import GradScaler, autocast
from torch.nn.functional import mse_loss

PARTS = 4


def main() -> None:
    model = problem.model(seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = GradScaler("cpu")
    losses, loss_of_step = [], 0.0
    for part, (inputs, target) in enumerate(problem.batches(200 * PARTS, size=16), start=1):
        with autocast("cpu", torch.float16):
            loss = mse_loss(model(inputs), target) / PARTS
        scaler.scale(loss).backward()  # gradients add up, with the scale on them
        loss_of_step += loss.item()
        if part % PARTS == 0:
            # scaler.unscale_(optimizer) belongs here, where gradients are read or changed.
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss_of_step)
            loss_of_step = 0.0
    problem.report(f"{PARTS} parts a step", losses)


if __name__ == "__main__":
    main()
