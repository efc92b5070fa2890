// Functions of each element by itself that the library has (kernels/pointwise/pointwise.h): one pass reads 16-bit data,
// computes in FP32, and writes at the exponent that follows from the operands' scales; the pass's own sums say whether
// that was the right one.
#pragma once

#include <ATen/core/stack.h>

#include <string_view>

#include "plimsoll/autoscale/plan.h"

namespace plimsoll::autoscale {

bool is_pointwise(std::string_view op);  // Rule::op

// False, and nothing is done, where the operands do not lie alike in 16 bits, where something is not finite or a mask,
// and for other policies than autoscale.
bool run_pointwise(const Plan& plan, torch::jit::Stack& stack);

}  // namespace plimsoll::autoscale
