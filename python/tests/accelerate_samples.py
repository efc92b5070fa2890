"""Samples of torch's own operator tests (OpInfo), forward and gradients, under plimsoll.accelerate(). Run as a program it checks
all of them under the instruction set that PLIMSOLL_ISA names, and prints how many calls of each operator were replaced."""

import itertools
import json
import sys
import types
import unittest

import plimsoll
import torch
from rounding import rounds_alike
from torch.utils._pytree import tree_leaves, tree_map_only

# The base class of torch's own test cases, of which no sample makes use; the package is no part of torch's wheels.
sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))  # type: ignore[arg-type]
import torch.testing._internal.common_methods_invocations as invocations  # noqa: E402
from torch.testing._internal.opinfo.core import SampleInput  # noqa: E402

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
OPERATORS = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "matmul",
    "nn.functional.linear",
    "einsum",
    "nn.functional.scaled_dot_product_attention",
    "nn.functional.gelu",
    "nn.functional.silu",
    "softmax",
    "log_softmax",
    "nn.functional.cross_entropy",
    "nn.functional.layer_norm",
    "nn.functional.rms_norm",
)
SAMPLES = 10  # of each operator and dtype
SMALL, MIDDLE = 64, 80  # in the place of torch's 5 and 10, which are too small for a gain


def operators():
    invocations.S, invocations.M = SMALL, MIDDLE
    return [op for op in invocations.op_db if op.name in OPERATORS and not op.variant_test_name]


def clone(sample, dtype=None):
    """The same numbers in tensors of their own, floating ones in another dtype if that is given."""

    def copy(x):
        if not x.is_floating_point():
            return x
        return x.detach().to(dtype or x.dtype, copy=True, memory_format=torch.preserve_format).requires_grad_(x.requires_grad)

    return tree_map_only(torch.Tensor, copy, (sample.input, sample.args, sample.kwargs))


def run(op, arguments):
    """Results, then gradients for a fixed gradient of each."""
    first, args, kwargs = arguments
    results = [x for x in tree_leaves(op(first, *args, **kwargs)) if isinstance(x, torch.Tensor)]
    leaves = [x for x in tree_leaves(arguments) if isinstance(x, torch.Tensor) and x.requires_grad]
    if not leaves or not results[0].requires_grad:
        return results
    torch.manual_seed(1)
    gradient = torch.randn(results[0].shape, dtype=torch.float32).to(torch.bfloat16).to(results[0].dtype)
    return results + [x for x in torch.autograd.grad(results[0], leaves, gradient, allow_unused=True) if x is not None]


def check(name, ours, theirs, exact):
    assert len(ours) == len(theirs) == len(exact), name
    for mine, torchs, right in zip(ours, theirs, exact, strict=True):
        assert (mine.dtype, mine.shape, mine.stride()) == (torchs.dtype, torchs.shape, torchs.stride()), name
        finite = torchs.isfinite()
        assert torch.equal(mine.isfinite(), finite), name
        assert rounds_alike(*(torch.where(finite, x, 0) for x in (mine, torchs, right))), name


def written(op, sample):
    """The result in tensors of the caller's: one that fits, one with other strides and one that torch must resize."""
    first, args, kwargs = clone(sample)
    with torch.no_grad():
        like = op(first, *args, **kwargs)
        reversed_dims = tuple(reversed(range(like.dim())))
        outs = [torch.empty_like(like), torch.empty_like(like.permute(reversed_dims)).permute(reversed_dims), like.new_empty(0)]
        for out in outs:
            assert op(first, *args, **kwargs, out=out) is out
    return outs


def larger_samples(op, dtype):
    """Samples for operators of which torch's are too small for a gain: hidden rows, Inf and NaN among them."""

    def normal(*sizes):
        return torch.randn(sizes).to(dtype).requires_grad_()

    if op.name == "nn.functional.scaled_dot_product_attention":
        mask = torch.randn(96, 160).to(dtype)
        mask[3] = -torch.inf
        for options in (
            {},
            {"is_causal": True},
            {"attn_mask": mask},
            {"scale": 0.3},
            {"attn_mask": torch.randn(2, 1, 1, 160) > 0},
        ):
            q, k, v = normal(2, 96, 3, 32), normal(2, 160, 3, 32), normal(2, 160, 3, 32)
            yield SampleInput(q.transpose(1, 2), args=(k.transpose(1, 2), v.transpose(1, 2)), kwargs=options)
        grouped = (normal(2, 6, 96, 32), normal(2, 2, 96, 32), normal(2, 2, 96, 32))
        yield SampleInput(grouped[0], args=grouped[1:], kwargs={"is_causal": True, "enable_gqa": True})
        fused = normal(2, 144, 3, 4, 16)
        yield SampleInput(*(x.transpose(1, 2) for x in fused.unbind(2)), is_causal=True)
    elif op.name == "nn.functional.layer_norm":
        yield SampleInput(normal(171, 3, 257), args=((257,), normal(257), normal(257)))
        yield SampleInput(normal(384, 257), args=((257,), normal(257)))
    elif op.name == "nn.functional.rms_norm":
        yield SampleInput(normal(128, 3, 257), args=((257,),), kwargs={"weight": normal(257)})
        yield SampleInput(normal(384, 257), args=((257,),), kwargs={"eps": 1e-2})
        yield SampleInput(normal(384, 257), args=((257,),), kwargs={"weight": torch.randn(257).requires_grad_()})
    elif op.name == "nn.functional.gelu":
        yield from (SampleInput(normal(130, 777), kwargs={"approximate": by}) for by in ("tanh", "none"))
    elif op.name == "nn.functional.silu":
        yield SampleInput(normal(130, 777))
    elif op.name in ("softmax", "log_softmax"):
        x = normal(130, 777)
        with torch.no_grad():
            x[3, 5:], x[4], x[5, 7], x[6, 8] = -torch.inf, -torch.inf, torch.inf, torch.nan
        yield SampleInput(x, args=(-1,))
    elif op.name == "nn.functional.cross_entropy":
        x, targets = normal(130, 777), torch.randint(777, (130,))
        targets[7] = -100
        for options in ({}, {"label_smoothing": 0.1}, {"weight": torch.rand(777).to(dtype)}):
            yield SampleInput(x, args=(targets,), kwargs={"reduction": "none", **options})
        yield SampleInput(x, args=(torch.rand(130, 777).to(dtype),), kwargs={"reduction": "none"})


def exact_result(op, sample):
    return run(op, clone(sample, torch.float64))[0]


def check_samples() -> dict[str, dict[str, int]]:
    for op, dtype in itertools.product(operators(), DTYPES):
        torch.manual_seed(0)
        samples = itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=True), SAMPLES)
        for number, sample in enumerate(itertools.chain(samples, larger_samples(op, dtype))):
            for layout in (sample, sample.noncontiguous()):
                name = f"{op.name} {dtype} sample {number}: {layout.summary()}"
                plimsoll.accelerate(False)
                theirs, exact = run(op, clone(layout)), run(op, clone(layout, torch.float64))
                plimsoll.accelerate()
                check(name, run(op, clone(layout)), theirs, exact)
            if op.supports_out:
                ours = written(op, sample)
                plimsoll.accelerate(False)
                check(f"{name} with out", ours, written(op, sample), [exact_result(op, sample)] * len(ours))
    return plimsoll.acceleration_report()


if __name__ == "__main__":
    print(json.dumps(check_samples()))
