"""OffloadModel: slices of a model wait in mapped files until they compute; backward computes activations again, slice by slice.

.venv/bin/python examples/shard/offload_model.py
"""

import torch
from plimsoll.amp import autocast
from plimsoll.shard import OffloadModel
from torch import nn


def main() -> None:
    torch.set_num_threads(1)  # the model is too small for more
    torch.manual_seed(0)
    layers = [nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
    offload_model = OffloadModel(
        model=nn.Sequential(*layers),
        device=torch.device("cpu"),
        offload_device=torch.device("cpu"),
        num_slices=3,
        checkpoint_activation=True,
        num_microbatches=1,
    )
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(offload_model.parameters(), lr=0.1)
    images, labels = torch.randn(64, 28, 28), torch.randint(0, 10, (64,))
    offload_model.train()
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        with autocast("cpu", torch.bfloat16):
            output = offload_model(images.reshape(-1, 28 * 28))
            loss = criterion(output, target=labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"offload: loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    if not losses[-1] < 0.5 * losses[0]:
        raise SystemExit("expected the loss to fall to less than half")


if __name__ == "__main__":
    main()
