"""docs/autoscale_rules.md from the rule table: `python -m plimsoll.autoscale.rules_page > docs/autoscale_rules.md`."""

import torch

# Effect of each class on scales, and the test in python/tests/autoscale_rules_test.py that shows it.
CLASSES = {
    "scale-free": ("no scale in the result", "test_comparisons_see_values"),
    "degree 1": (
        "data as they are, exponent e; a sum over n terms adds log2(n) / 2 to the remainder",
        "test_a_homogeneous_rule_gives_the_same_bits_for_any_exponents",
    ),
    "degree k": (
        "exponents are added, subtracted, halved; the odd bit of a root moves into the data",
        "test_a_homogeneous_rule_gives_the_same_bits_for_any_exponents",
    ),
    "additive": (
        "operands at the largest exponent; a constant only has to fit",
        "test_an_additive_rule_rounds_once_and_shifts_exactly",
    ),
    "accumulator": (
        "at the larger exponent of self and of the other term, whose shift is in the factor that the operator has",
        "test_an_additive_rule_rounds_once_and_shifts_exactly",
    ),
    "product": (
        "exponents are added, K terms add log2(K) / 2, the result is rounded to the nearest exponent in the GEMM's factor",
        "test_a_product_that_fp16_does_not_hold_is_held",
    ),
    "invariant": (
        "values in FP32; the exponent of layer_norm and rms_norm is that of weight and bias, of the others it is measured",
        "test_a_nonlinear_rule_is_fp32_on_the_value_and_one_rounding",
    ),
    "nonlinear": (
        "values in FP32; the exponent of gelu and silu is the operand's, of the others it is measured",
        "test_a_nonlinear_rule_is_fp32_on_the_value_and_one_rounding",
    ),
    "gradient": (
        "linear in the gradient, whose exponent stays outside; the rest are values in FP32; the exponent of gelu, silu and "
        "hardtanh is the gradient's, of the others it is measured",
        "test_a_model_trains_as_in_fp32",
    ),
    "optimizer": ("values in FP32, written back", "test_an_optimizer_makes_the_steps_of_fp32"),
    "move": ("the scale goes along", "test_a_write_into_a_view_is_a_write_into_the_whole"),
}

HEADER = """# Rules of autoscale

Printed from `plimsoll/autoscale/rule_table.cpp` by `python -m plimsoll.autoscale.rules_page`. What the classes mean:
[autoscale.md](autoscale.md). An operator that writes into its first argument (`add_`), or into tensors that it is given (`out=`), has the
rule of the one that writes into none.
Views (`view`, `transpose`, `split` ...) share the scale of what they view; operators that torch composes of others (`_foreach_*`)
run as those; every other one runs on the values in FP32 and is counted.
What has FP32 data because its elements lie far apart (`Rule::spread`): [autoscale.md](autoscale.md#how-it-works).
Where `matmul_format` asks for codes, `mm` and `addmm` have the rule of a product on their values: codes are of the data, and exponents stay
outside ([autoscale.md](autoscale.md#functions)).

| class | operators | scale | bound | test |
|---|---|---|---|---|"""


def page() -> str:
    ops, classes, bounds = torch.ops.plimsoll.autoscale_rules()
    lines = [HEADER]
    for name, (scale, test) in CLASSES.items():
        names = ", ".join(f"`{op}`" for op, its_class in zip(ops, classes, strict=False) if its_class == name)
        bound = next(bound for its_class, bound in zip(classes, bounds, strict=False) if its_class == name)
        lines.append(f"| {name} | {names} | {scale} | {bound} | `{test}` |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
