"""A linear layer under each recipe from quantize, dequantize and products in double; and how far FP32 may be from it."""

import torch
from plimsoll.common import recipe

quantize = torch.ops.plimsoll.quantize
quantize_blocks = torch.ops.plimsoll.quantize_blocks
dequantize = torch.ops.plimsoll.dequantize

RECIPES = {
    "delayed": recipe.DelayedScaling(),
    "delayed-e4m3": recipe.DelayedScaling(fp8_format=recipe.Format.E4M3, margin=1),
    "delayed-power-of-two": recipe.DelayedScaling(power_of_two=True),
    "current": recipe.Float8CurrentScaling(),
    "current-power-of-two": recipe.Float8CurrentScaling(use_power_2_scales=True),
    "row": recipe.Float8CurrentScaling(granularity="row"),
    "block": recipe.Float8BlockScaling(),
    "block-fp32": recipe.Float8BlockScaling(use_f32_scales=True),
    "mxfp8": recipe.MXFP8BlockScaling(),
}
# Blocks of the logical matrix [rows, reduction], for inputs and gradients and for weights.
BLOCKS = {"row": ((1, 0), (1, 0)), "block": ((1, 128), (128, 128)), "mxfp8": ((1, 32), (1, 32))}
# (role, product) whose reduction runs over the rows of the tensor as it is stored.
OVER_ROWS = {("input", "wgrad"), ("weight", "dgrad"), ("grad_output", "wgrad")}


def block_of(rule, role, product):
    for name, (rows, weights) in BLOCKS.items():
        if is_kind(rule, name):
            block = weights if role == "weight" else rows
            return block[::-1] if (role, product) in OVER_ROWS else block
    return (0, 0)


def is_kind(rule, name):
    if name == "row":
        return rule.float8_current_scaling() and rule.granularity == "row"
    return rule.mxfp8() if name == "mxfp8" else rule.float8_block_scaling()


def delayed_scale(rule, amax, code_format):
    """The first one: of the operand's own amax. FP32, as recipes.md writes it."""
    largest = torch.tensor(448.0 if code_format == "e4m3" else 57344.0)
    if rule.power_of_two:
        return 1 / torch.exp2(torch.floor(torch.log2(largest.double() / amax.double())) - rule.margin).float()
    return 1 / (largest * 2.0**-rule.margin / amax)


def operand(rule, x, role, product):
    """In double, what enters the product."""
    if rule is None or rule.override_linear_precision[("fprop", "dgrad", "wgrad").index(product)]:
        return x.double()
    code_format = "e5m2" if role == "grad_output" and rule.fp8_format is recipe.Format.HYBRID else "e4m3"
    block = block_of(rule, role, product)
    if rule.delayed():
        scale = delayed_scale(rule, x.abs().max(), code_format).reshape(1)
        codes, _ = quantize(x, scale, code_format)
    else:
        powers = rule.mxfp8() or getattr(rule, "use_power_2_scales", False) or not getattr(rule, "use_f32_scales", True)
        scale_format, rounding = "e8m0" if rule.mxfp8() else "fp32", getattr(rule, "rounding", "up")
        codes, scale, _ = quantize_blocks(
            x, code_format, block, scale_format=scale_format, power_of_two=powers, rounding=rounding
        )
    return dequantize(codes, scale, code_format, block, torch.float32).double()


def product(a, b, terms):
    """a b, and what an FP32 chain of that many terms may differ by: gamma of the terms and of the scales' roundings."""
    return a @ b, (terms + 8) * 2.0**-24 * (a.abs() @ b.abs())


def linear(rule, x, weight, bias, grad):
    """{name: (value, bound)} of the output and the gradients; x [rows, in]."""
    rows, columns = x.shape[0], x.shape[1]
    output, bound = product(operand(rule, x, "input", "fprop"), operand(rule, weight, "weight", "fprop").T, columns)
    results = {}
    if bias is not None:
        output, bound = output + bias.double(), bound + 2.0**-23 * (output.abs() + bias.abs())
        results["bias"] = (grad.double().sum(0), (rows + 8) * 2.0**-24 * grad.double().abs().sum(0))
    results["output"] = (output, bound)
    results["input"] = product(
        operand(rule, grad, "grad_output", "dgrad"), operand(rule, weight, "weight", "dgrad"), weight.shape[0]
    )
    results["weight"] = product(operand(rule, grad, "grad_output", "wgrad").T, operand(rule, x, "input", "wgrad"), rows)
    return results


def assert_within(ours, expected, what):
    value, bound = expected
    assert ours.shape == value.shape, what
    # A comparison with NaN is false, so NaN fails.
    assert bool(((ours.double() - value).abs() <= bound).all()), what
