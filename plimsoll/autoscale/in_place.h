// Sums, products and the like that are written into a parameter or an optimizer's state, element by element: in one
// pass over blocks of values in FP32, for optimizers that are loops of operators.
#pragma once

#include <ATen/core/stack.h>

#include "plimsoll/autoscale/plan.h"

namespace plimsoll::autoscale {

// The variant that writes into its first argument; by execute() for other tensors, and where these do not lie alike.
void run_in_place(const Plan& plan, torch::jit::Stack& stack);

}  // namespace plimsoll::autoscale
