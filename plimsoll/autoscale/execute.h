// One call of an operator on scaled tensors.
#pragma once

#include <ATen/core/stack.h>

#include "plimsoll/autoscale/plan.h"

namespace plimsoll::autoscale {

// By the rule, or on values in FP32 where there is none; the arguments on the stack become the results.
void execute(const Plan& plan, torch::jit::Stack& stack);

}  // namespace plimsoll::autoscale
