"""Cases that vs_torch.py times: for each name a pair of functions, PyTorch's and Plimsoll's, on the same tensors."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

OURS = torch.ops.plimsoll
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
E4M3_MAX = 448.0
ROWS, DIM = 8192, 1024  # of what streams through memory: 32 MiB in fp32


def mm(dtype, layout, size):
    """nt: a b^T, as a linear layer; nn: its grad_input; tn: its grad_weight."""
    a, b = (torch.randn(size, size).to(DTYPES[dtype]) for _ in range(2))
    kind = {"nt": "output", "nn": "grad_input", "tn": "grad_weight"}[layout]
    left, right = (a.t() if layout == "tn" else a), (b.t() if layout == "nt" else b)
    return lambda: torch.mm(left, right), lambda: OURS.gemm(a, b, None, kind, a.dtype)


def scaled_mm(size):
    a, b = (torch.randn(size, size).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones(1)
    codes_a, codes_b, scale = a.view(torch.uint8), b.view(torch.uint8), torch.ones(1, 1)
    return (
        lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16),
        lambda: OURS.scaled_gemm(codes_a, codes_b, scale, scale, "e4m3", "e4m3", [0, 0], [0, 0], None, "output", torch.bfloat16),
    )


def forward_and_backward(function, *inputs):
    """A function that runs both, with the same gradient of the result each time."""
    inputs = tuple(x.detach().requires_grad_(x.is_floating_point()) for x in inputs)
    grad = torch.randn_like(function(*inputs))
    differentiable = [x for x in inputs if x.requires_grad]
    return lambda: torch.autograd.grad(function(*inputs), differentiable, grad)


def pair(torchs, ours, *inputs):
    return forward_and_backward(torchs, *inputs), forward_and_backward(ours, *inputs)


def layer_norm(dtype):
    x = torch.randn(ROWS, DIM, dtype=DTYPES[dtype])
    weight, bias = torch.ones(DIM, dtype=x.dtype), torch.zeros(DIM, dtype=x.dtype)
    return pair(lambda x, w, b: F.layer_norm(x, (DIM,), w, b), lambda x, w, b: OURS.norm(x, w, b), x, weight, bias)


def rms_norm(dtype):
    x, weight = torch.randn(ROWS, DIM, dtype=DTYPES[dtype]), torch.ones(DIM, dtype=DTYPES[dtype])
    return pair(lambda x, w: F.rms_norm(x, (DIM,), w), lambda x, w: OURS.norm(x, w, None, "rmsnorm"), x, weight)


def gelu(dtype):
    x = torch.randn(ROWS, DIM, dtype=DTYPES[dtype])
    return pair(lambda x: F.gelu(x, approximate="tanh"), lambda x: OURS.activation(x, "gelu"), x)


def softmax(dtype):
    x = torch.randn(8, 4, 512, 512, dtype=DTYPES[dtype])
    return pair(lambda x: torch.softmax(x, -1), lambda x: OURS.softmax(x), x)


def attention(dtype, causal):
    q, k, v = (torch.randn(8, 12, 512, 64, dtype=DTYPES[dtype]) for _ in range(3))
    return pair(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal),
        lambda q, k, v: OURS.attention(q, k, v, mask_type="causal" if causal else "no_mask"),
        q,
        k,
        v,
    )


def cross_entropy(dtype):
    logits, targets = torch.randn(1024, 50257, dtype=DTYPES[dtype]), torch.randint(0, 50257, (1024,))
    return pair(F.cross_entropy, OURS.cross_entropy, logits, targets)


def quantize(dtype):
    """The tensor's own scale: amax, scale, codes."""
    x = torch.randn(ROWS, DIM, dtype=DTYPES[dtype])

    def torchs():
        scale = x.abs().amax().float() / E4M3_MAX
        return (x * scale.reciprocal()).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn), scale

    return torchs, lambda: OURS.quantize_blocks(x, "e4m3", [0, 0])


def dequantize(dtype):
    codes, scale = torch.randn(ROWS, DIM).to(torch.float8_e4m3fn), torch.full((1, 1), 0.37)
    raw = codes.view(torch.uint8)
    return (
        lambda: codes.to(DTYPES[dtype]) * scale.to(DTYPES[dtype]),
        lambda: OURS.dequantize(raw, scale, "e4m3", [0, 0], DTYPES[dtype]),
    )


def adamw():
    parameter = torch.randn(1 << 24)
    parameter.grad = 1e-3 * torch.randn_like(parameter)
    optimizer = torch.optim.AdamW([parameter], lr=1e-4, fused=True)
    weight, moments = parameter.clone(), [torch.zeros_like(parameter) for _ in range(2)]
    return optimizer.step, lambda: OURS.adamw_(weight, parameter.grad, *moments, 1, 1e-4)


def all_cases():
    """{name: function that makes the pair}."""
    cases: dict[str, Callable[[], tuple[Callable[[], object], Callable[[], object]]]] = {}
    for dtype in DTYPES:
        for layout in ("nt", "nn", "tn"):
            for size in (512, 1024, 2048):
                cases[f"mm/{dtype}/{layout}/{size}"] = partial(mm, dtype, layout, size)
    for size in (512, 1024, 2048):
        cases[f"scaled_mm/e4m3/{size}"] = partial(scaled_mm, size)
    for dtype in DTYPES:
        for name, causal in (("attention", False), ("attention_causal", True)):
            cases[f"{name}/{dtype}"] = partial(attention, dtype, causal)
        for make in (cross_entropy, layer_norm, rms_norm, gelu, softmax, quantize, dequantize):
            cases[f"{make.__name__}/{dtype}"] = partial(make, dtype)
    cases["adamw/fp32"] = adamw
    return cases
