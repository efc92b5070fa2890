"""Typical mixed-precision training: forward pass and loss under autocast, backward outside, the step through the scaler.

.venv/bin/python examples/amp/typical_training.py
"""

import problem
import torch
from plimsoll.amp import GradScaler, autocast
from torch.nn.functional import mse_loss


def train(use_amp: bool) -> list[float]:
    model = problem.model(seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = GradScaler("cpu", enabled=use_amp)  # disabled: every call does what it would do without a scaler
    losses = []
    for inputs, target in problem.batches(200):
        optimizer.zero_grad()
        with autocast("cpu", torch.float16, enabled=use_amp):
            output = model(inputs)  # Linear in fp16, LayerNorm in fp32
            loss = mse_loss(output, target)  # in fp32
        scaler.scale(loss).backward()  # each operator's gradient in the dtype of its forward pass
        scaler.step(optimizer)  # takes the scale off; skips the step if a gradient is not finite
        scaler.update()
        losses.append(loss.item())
    return losses


def main() -> None:
    problem.report("fp32", train(use_amp=False))
    problem.report("fp16", train(use_amp=True))


if __name__ == "__main__":
    main()
