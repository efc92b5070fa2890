// Functions of each element by itself: the library's in one pass (pointwise.h); torch's on values in FP32 of a block at
// a time, which stay in the cache.
#pragma once

#include <ATen/core/stack.h>

#include <string_view>

#include "plimsoll/autoscale/plan.h"

namespace plimsoll::autoscale {

bool is_elementwise(std::string_view op);  // Rule::op

// By execute() where the operands do not lie alike in 16 bits, where something is not finite, and for other policies
// than autoscale.
void run_elementwise(const Plan& plan, torch::jit::Stack& stack);

}  // namespace plimsoll::autoscale
