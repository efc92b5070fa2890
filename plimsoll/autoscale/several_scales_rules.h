// Rules of tensors with several scales. Views, signs, products, sums, reductions within a block, and products of
// matrices with scales of rows on the left and of columns on the right keep the scales. Every other operator sees one
// power of two, rounded to the session's format (one_scale.h).
#pragma once

#include <ATen/core/stack.h>

#include "plimsoll/autoscale/plan.h"

namespace plimsoll::autoscale {

// Runs one call, whose operands may have several scales.
void run_with_scales(const Plan& plan, torch::jit::Stack& stack);

ScalesRule keep_scales;              // functions of each element that are of degree 1 for factors above 0
ScalesRule keep_scales_or_cast;      // a cast that the data cannot stand in for is one of the value
ScalesRule keep_scales_behind_relu;  // relu's gradient: of its second operand the sign alone counts
ScalesRule ignore_scales;            // the kernel reads sizes alone, or refuses several scales
ScalesRule swap_dimensions;          // t, transpose, permute
ScalesRule move_scales;              // the operator moves the scales as it moves the data
ScalesRule reshape_scales;           // all elements in their order, in another shape
ScalesRule multiply_scales, divide_scales;
ScalesRule multiply_matrices;  // a scale along the dimension that is summed over is in each term another one
ScalesRule reduce;             // over dimensions along which the scale is one
ScalesRule add_elements, subtract_elements;  // each element at the larger one of two scales

}  // namespace plimsoll::autoscale
