"""Mixed precision under torch.amp's names: autocast, GradScaler, custom_fwd and custom_bwd; and AutomaticLossScaler."""

from plimsoll.amp.autocast import autocast
from plimsoll.amp.automatic_loss_scaler import AutomaticLossScaler
from plimsoll.amp.custom_function import custom_bwd, custom_fwd
from plimsoll.amp.grad_scaler import GradScaler, StepReport
from plimsoll.amp.recompute import install

install()

__all__ = ["AutomaticLossScaler", "GradScaler", "StepReport", "autocast", "custom_bwd", "custom_fwd"]
