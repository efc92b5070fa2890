// Optimizers' steps that torch has as one operator on all parameters.
#pragma once

#include <ATen/core/stack.h>

#include "plimsoll/autoscale/plan.h"

namespace plimsoll::autoscale {

// Parameter by parameter: the values in FP32, which the operator needs, are those of one at a time.
void step_fused_adam(const Plan& plan, torch::jit::Stack& stack);
void step_fused_adamw(const Plan& plan, torch::jit::Stack& stack);
void step_fused_sgd(const Plan& plan, torch::jit::Stack& stack);

}  // namespace plimsoll::autoscale
