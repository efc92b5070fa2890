// Functions of each element by itself: values in FP32 are those of a block, which stays in the cache.
#pragma once

#include <ATen/core/stack.h>

#include <string_view>

#include "plimsoll/autoscale/plan.h"

namespace plimsoll::autoscale {

bool is_elementwise(std::string_view op);  // Rule::op

// An operator whose operands are tensors of one shape and whose rule has modes 1 and v. By execute() where they do not
// lie alike in 16 bits, where something is not finite, and for other policies than autoscale.
void run_elementwise(const Plan& plan, torch::jit::Stack& stack);

}  // namespace plimsoll::autoscale
