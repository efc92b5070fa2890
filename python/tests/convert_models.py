"""A model that convert() changes."""

from torch import nn


def make_mlp():
    return nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 8))
