"""Effect of a narrow format's significand on a computation of torch's, with no limit of range."""

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode


def round_significand(x, bits):
    """x to nearest even, in its own dtype, with that many bits of significand; Inf and NaN stay."""
    significand, exponent = torch.frexp(x)
    return torch.where(x.isfinite(), torch.ldexp(torch.round(significand * 2.0**bits) * 2.0**-bits, exponent), x)


PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")


class RoundedResults(TorchDispatchMode):
    """Rounds every floating-point result of every operator, in the backward pass, too. operand_bits: and the operands of
    products of matrices, to so many."""

    def __init__(self, bits, operand_bits=None):
        super().__init__()
        self.bits, self.operand_bits = bits, operand_bits

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if self.operand_bits and operator.overloadpacket.__name__ in PRODUCTS:
            args = [round_significand(x, self.operand_bits) if isinstance(x, torch.Tensor) else x for x in args]
        results = operator(*args, **(kwargs or {}))
        is_view = any(result.alias_info and not result.alias_info.is_write for result in operator._schema.returns)
        for x in [] if is_view else _pytree.tree_leaves(results):
            if isinstance(x, torch.Tensor) and x.is_sparse:
                x = x._values()
            # In place: results of ours are known by their identity. A narrower format has fewer bits already.
            if isinstance(x, torch.Tensor) and x.is_floating_point() and torch.finfo(x.dtype).eps < 2.0 ** (1 - self.bits):
                x.copy_(round_significand(x, self.bits))
        return results
