"""Autocast belongs to a thread. A model that runs in other threads, as under DataParallel, opens a scope in its forward.

.venv/bin/python examples/amp/threads.py
"""

from concurrent.futures import ThreadPoolExecutor

import problem
import torch
from plimsoll.amp import GradScaler, autocast
from torch import nn
from torch.nn.functional import mse_loss


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = problem.model(seed=1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)


class Decorated(Plain):
    @autocast("cpu", torch.float16)
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)


class Scoped(Plain):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with autocast("cpu", torch.float16):
            return self.layers(inputs)


def parallel(model: nn.Module, inputs: torch.Tensor, pool: ThreadPoolExecutor) -> torch.Tensor:
    """One thread for each half of the batch."""
    return torch.cat(list(pool.map(model, inputs.chunk(2))))


def main() -> None:
    with ThreadPoolExecutor(2) as pool:
        for model in (Plain(), Decorated(), Scoped()):
            optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
            scaler = GradScaler("cpu")
            losses = []
            for inputs, target in problem.batches(200):
                optimizer.zero_grad()
                with autocast("cpu", torch.float16):  # holds in this thread: for the loss, not for the model
                    output = parallel(model, inputs, pool)
                    loss = mse_loss(output, target)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                losses.append(loss.item())
            problem.report(f"{type(model).__name__:9} computes in {output.dtype}", losses)
            expected = torch.float32 if type(model) is Plain else torch.float16
            if output.dtype != expected:
                raise SystemExit(f"expected {expected}")


if __name__ == "__main__":
    main()
