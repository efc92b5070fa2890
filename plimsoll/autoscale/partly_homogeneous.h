// Operators whose rule holds for nearly all arguments beside the tensor; for the others they run on the values.
#pragma once

#include <ATen/core/stack.h>

#include "plimsoll/autoscale/plan.h"

namespace plimsoll::autoscale {

// linalg_vector_norm: of the order 0 it counts elements.
void take_vector_norm(const Plan& plan, torch::jit::Stack& stack);

// avg_pool2d: with a divisor of the caller's it is a multiple of the mean.
void pool_averages(const Plan& plan, torch::jit::Stack& stack);

}  // namespace plimsoll::autoscale
