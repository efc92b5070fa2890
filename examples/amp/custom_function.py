"""Custom autograd functions: one whose backward runs under the autocast of its forward, one that always computes in fp32.

.venv/bin/python examples/amp/custom_function.py
"""

import problem
import torch
from plimsoll.amp import GradScaler, autocast, custom_bwd, custom_fwd
from torch import nn
from torch.nn.functional import mse_loss

dtypes: set[tuple[str, torch.dtype]] = set()


class Product(torch.autograd.Function):
    """x w^T in the dtype of the autocast scope."""

    @staticmethod
    @custom_fwd(device_type="cpu")
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        output = x.mm(weight.t())
        dtypes.add(("product, forward", output.dtype))
        return output

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_x, grad_weight = grad.mm(weight), grad.t().mm(x)
        dtypes.add(("product, backward", grad_x.dtype))
        return grad_x, grad_weight


class Softsign(torch.autograd.Function):
    """x / (1 + |x|), in fp32."""

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x):
        dtypes.add(("softsign, forward", x.dtype))
        ctx.save_for_backward(x)
        return x / (1 + x.abs())

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        dtypes.add(("softsign, backward", grad.dtype))
        return grad / (1 + x.abs()).square()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Parameter(torch.randn(64, problem.FEATURES) / problem.FEATURES**0.5)
        self.second = nn.Parameter(torch.randn(8, 64) / 8)

    def forward(self, x):
        return Product.apply(Softsign.apply(Product.apply(x, self.first)), self.second)


def main() -> None:
    model, scaler = Model(), GradScaler("cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for inputs, target in problem.batches(200):
        optimizer.zero_grad()
        with autocast("cpu", torch.float16):
            loss = mse_loss(model(inputs), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    problem.report("custom functions", losses)
    for name, dtype in sorted(dtypes, key=str):
        print(f"{name}: {dtype}")
    wanted = [dtype == (torch.float16 if "product" in name else torch.float32) for name, dtype in dtypes]
    if len(wanted) != 4 or not all(wanted):
        raise SystemExit("expected the product in fp16 and softsign in fp32")


if __name__ == "__main__":
    main()
