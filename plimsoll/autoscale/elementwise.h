// Functions of each element by itself that the library has no pass for (pointwise.h): torch's, on values in FP32 of a
// block at a time, which stay in the cache.
#pragma once

#include <ATen/core/stack.h>

#include "plimsoll/autoscale/plan.h"

namespace plimsoll::autoscale {

// By execute() where the operands do not lie alike in 16 bits, where something is not finite, and for other policies
// than autoscale.
void run_in_blocks(const Plan& plan, torch::jit::Stack& stack);

}  // namespace plimsoll::autoscale
