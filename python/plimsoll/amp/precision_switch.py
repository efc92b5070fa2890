"""Whether the precision table holds on this thread (docs/precision_policy.md)."""

import torch

# torch's switch of autocast for IPUs, which no tensor of this package lives on (plimsoll/amp/precision_kernels.h).
# torch.compile guards it, puts it into its graphs and into the keys of its caches, as it does every autocast switch.
_SWITCH = "ipu"


def table_holds() -> bool:
    return torch.is_autocast_enabled(_SWITCH)


def table_held(holds: bool) -> torch.autocast:
    """A scope of torch's, the only way to the switch that torch.compile traces in 2.11, too."""
    return torch.autocast(_SWITCH, enabled=holds)
