"""Mixed precision under torch.amp's names: :class:`GradScaler`."""

from plimsoll.amp.grad_scaler import GradScaler, StepReport

__all__ = ["GradScaler", "StepReport"]
