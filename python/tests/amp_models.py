"""The model of the tests of loss scaling."""

from typing import Any

import torch
from torch import nn


def net(seed: int = 1, sizes: tuple[int, int, int] = (16, 32, 4)) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(*sizes[:2]), nn.ReLU(), nn.Linear(*sizes[1:]))
