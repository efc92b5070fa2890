"""Effect of a narrow format's significand on a computation of torch's, with no limit of range."""

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode


def round_significand(x, bits):
    """x to nearest even, in its own dtype, with that many bits of significand; Inf and NaN stay."""
    significand, exponent = torch.frexp(x)
    return torch.where(x.isfinite(), torch.ldexp(torch.round(significand * 2.0**bits) * 2.0**-bits, exponent), x)


class RoundedResults(TorchDispatchMode):
    """Rounds every floating-point result of every operator."""

    def __init__(self, bits):
        super().__init__()
        self.bits = bits

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        def rounded(x):
            return round_significand(x, self.bits) if isinstance(x, torch.Tensor) and x.is_floating_point() else x

        return _pytree.tree_map(rounded, operator(*args, **(kwargs or {})))
