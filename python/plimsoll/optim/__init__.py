"""Optimizers on kernels that pass over a parameter, its gradient and its states once."""

from plimsoll.optim.adamw import AdamW

__all__ = ["AdamW"]
