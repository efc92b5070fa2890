"""The problem of the examples: a small model learns to copy a fixed one."""

import torch
from torch import nn

FEATURES = 32
torch.set_num_threads(1)  # the model is too small for more


def model(seed: int, outputs: int = 8) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, outputs))


def batches(count: int, size: int = 64, outputs: int = 8):
    """(input, target), `count` times; the target is the fixed model's output."""
    teacher = model(seed=0, outputs=outputs)
    for _ in range(count):
        inputs = torch.randn(size, FEATURES)
        yield inputs, teacher(inputs).detach()


def report(what: str, losses: list[float]) -> None:
    """Prints how the loss fell; ends the program with 1 if it did not."""
    print(f"{what}: loss {losses[0]:.4f} -> {losses[-1]:.4f} in {len(losses)} steps")
    if not losses[-1] < 0.5 * losses[0]:
        raise SystemExit(f"{what}: expected the loss to fall to less than half")
