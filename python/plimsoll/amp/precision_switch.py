"""Whether the precision table holds on this thread (docs/precision_policy.md)."""

import torch

# torch's switch of autocast for IPUs, which no tensor of this package lives on (plimsoll/amp/precision_kernels.h).
# torch.compile guards it, puts it into its graphs and into the keys of its caches, as it does every autocast switch.
_SWITCH = "ipu"


def table_holds() -> bool:
    return torch.is_autocast_enabled(_SWITCH)


def hold_table(holds: bool) -> None:
    torch.set_autocast_enabled(_SWITCH, holds)
