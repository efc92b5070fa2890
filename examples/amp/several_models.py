"""Several models, losses and optimizers: scale each loss, step each optimizer, update once.

.venv/bin/python examples/amp/several_models.py
"""

import problem
import torch
from plimsoll.amp import GradScaler, autocast
from torch.nn.functional import mse_loss


def main() -> None:
    model0, model1 = problem.model(seed=1), problem.model(seed=2)
    optimizer0 = torch.optim.AdamW(model0.parameters(), lr=3e-3)
    optimizer1 = torch.optim.SGD(model1.parameters(), lr=0.02)
    scaler = GradScaler("cpu", init_scale=2.0**24)  # too large: steps are skipped until it fits
    losses, skipped = [], [0, 0]
    for inputs, target in problem.batches(300):
        optimizer0.zero_grad()
        optimizer1.zero_grad()
        with autocast("cpu", torch.float16):
            output0, output1 = model0(inputs), model1(inputs)
            loss0 = mse_loss(2 * output0 + 3 * output1, target)
            loss1 = mse_loss(3 * output0 - 5 * output1, target)
        scaler.scale(loss0).backward(retain_graph=True)  # both losses share parts of the graph
        scaler.scale(loss1).backward()

        scaler.unscale_(optimizer0)  # needed only where gradients are read
        scaler.step(optimizer0)  # each optimizer skips by its own gradients
        scaler.step(optimizer1)
        for index, optimizer in enumerate((optimizer0, optimizer1)):
            skipped[index] += scaler.last_report(optimizer).skipped
        scaler.update()
        losses.append(loss0.item() + loss1.item())
    problem.report("both losses", losses)
    print(f"skipped steps: {skipped[0]} and {skipped[1]}; loss scale at the end: {scaler.get_scale():.0f}")


if __name__ == "__main__":
    main()
