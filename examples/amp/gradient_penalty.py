"""Gradient penalty: gradients that enter the loss come from the scaled loss, and the program divides them by the scale.

.venv/bin/python examples/amp/gradient_penalty.py
"""

import problem
import torch
from plimsoll.amp import GradScaler, autocast
from torch.nn.functional import mse_loss

WEIGHT = 0.2


def train(penalty_weight: float) -> tuple[list[float], float]:
    """Losses, and the last norm of the gradients."""
    model = problem.model(seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = GradScaler("cpu")
    losses = []
    for inputs, target in problem.batches(200):
        optimizer.zero_grad()
        with autocast("cpu", torch.float16):
            loss = mse_loss(model(inputs), target)

        # The scale keeps these gradients from underflow in fp16. No optimizer owns them, so unscale_ does not divide them.
        scaled_grads = torch.autograd.grad(scaler.scale(loss), list(model.parameters()), create_graph=True)
        grads = [grad / scaler.get_scale() for grad in scaled_grads]

        with autocast("cpu", torch.float16):
            grad_norm = sum(grad.pow(2).sum() for grad in grads).sqrt()  # pow and sum in fp32
            penalized = loss + penalty_weight * grad_norm
        scaler.scale(penalized).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, grad_norm.item()


def main() -> None:
    losses, plain = train(0)
    problem.report("without penalty", losses)
    losses, penalized = train(WEIGHT)
    problem.report(f"penalty {WEIGHT}", losses)
    print(f"gradient norm at the end: {plain:.4f} without, {penalized:.4f} with penalty")


if __name__ == "__main__":
    main()
