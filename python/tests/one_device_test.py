"""Operators of several operands refuse one on "meta" beside others on the CPU, either way round: a result without values
would look like any other."""

from collections.abc import Callable

import plimsoll.pytorch as te
import pytest
import torch

ops = torch.ops.plimsoll
NORM = {"kind": "layernorm", "zero_centered": False, "epsilon": 1e-5}
ENTROPY = {"reduction": "mean", "ignore_index": -100, "label_smoothing": 0.0}
TURN = {"position_dim": 0, "interleaved": False, "transposed": False}
CODES = {"format_a": "e4m3", "format_b": "e4m3", "block_a": [0, 0], "block_b": [0, 0], "kind": "output", "dtype": torch.float32}
MATRIX, ROW, ONE = torch.randn(4, 4), torch.randn(4), torch.ones(1)
FOUR, IDS, BYTES = torch.randn(2, 2, 2, 4), torch.zeros(4, dtype=torch.int64), torch.zeros(4, 4, dtype=torch.uint8)

CALLS: dict[str, tuple[Callable[..., object], tuple[torch.Tensor, ...]]] = {
    "norm": (lambda x, weight, bias: ops.norm(x, weight, bias), (MATRIX, ROW, ROW)),
    "norm_residual": (
        lambda x, residual, weight: ops.norm_residual(x, residual, weight, ROW.to(x.device)),
        (MATRIX, MATRIX, ROW),
    ),
    "norm_backward": (
        lambda grad, x, weight, rstd: ops.norm_backward(grad, None, x=x, weight=weight, mean=rstd, rstd=rstd, **NORM),
        (MATRIX, MATRIX, ROW, ROW),
    ),
    "rotary": (lambda x, angles: ops.rotary(x, angles), (FOUR, torch.randn(2, 4))),
    "rotary_turn": (lambda x, c, s: ops.rotary_turn(x, c, s, **TURN), (FOUR, torch.randn(2, 4), torch.randn(2, 4))),
    "softmax": (lambda x, mask: ops.softmax(x, mask=mask), (FOUR, FOUR > 0)),
    "softmax_backward": (lambda y, grad: ops.softmax_backward(y, grad, 1.0), (FOUR, FOUR)),
    "activation_backward": (lambda x, grad: ops.activation_backward(x, grad, "gelu", []), (MATRIX, MATRIX)),
    "embedding": (lambda tokens, weight, positions: ops.embedding(tokens, weight, positions), (IDS[None], MATRIX, MATRIX)),
    "cross_entropy": (lambda logits, targets, weight: ops.cross_entropy(logits, targets, weight), (MATRIX, IDS, ROW.exp())),
    "cross_entropy_backward": (
        lambda grad, logits, targets: ops.cross_entropy_backward(grad, logits, targets, None, **ENTROPY),
        (ONE, MATRIX, IDS),
    ),
    "linear_cross_entropy": (lambda x, weight, targets: ops.linear_cross_entropy(x, weight, targets), (MATRIX, MATRIX, IDS)),
    "attention": (lambda query, key, value: ops.attention(query, key, value), (FOUR, FOUR, FOUR)),
    "quantize": (lambda x, scale: ops.quantize(x, scale, "e4m3"), (MATRIX, ONE)),
    "dequantize": (lambda codes, scale: ops.dequantize(codes, scale, "e4m3", [0, 0], torch.float32), (BYTES, ONE)),
    "gemm": (lambda a, b, bias: ops.gemm(a, b, bias, "output", torch.float32), (MATRIX, MATRIX, ROW)),
    "scaled_gemm": (
        lambda a, b, scale_a, scale_b: ops.scaled_gemm(a, b, scale_a, scale_b, bias=None, **CODES),
        (BYTES, BYTES, ONE, ONE),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_one_operand_on_another_device_is_an_error(name):
    call, operands = CALLS[name]
    call(*operands)
    call(*(operand.to("meta") for operand in operands))
    for odd in range(len(operands)):
        for usual, other in (("cpu", "meta"), ("meta", "cpu")):
            mixed = [operand.to(other if i == odd else usual) for i, operand in enumerate(operands)]
            with pytest.raises(RuntimeError, match="expected all operands on the .* as the first, got one on the"):
                call(*mixed)


def test_layers_on_meta_refuse_values():
    for module in (te.LayerNorm(4, device="meta"), te.RMSNorm(4, device="meta")):
        with pytest.raises(RuntimeError, match="norm: expected all operands on the cpu as the first, got one on the meta"):
            module(MATRIX)
    angles = te.RotaryPositionEmbedding(4)(2)
    with pytest.raises(RuntimeError, match="rotary: expected all operands on the cpu as the first, got one on the meta"):
        te.apply_rotary_pos_emb(FOUR, angles.to("meta"))
