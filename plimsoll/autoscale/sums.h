// Sums over the rows of a matrix, as the gradient of a bias is one.
#pragma once

#include <ATen/core/stack.h>

#include "plimsoll/autoscale/plan.h"

namespace plimsoll::autoscale {

// sum.dim_IntList: over the rows of a dense matrix by the library's kernel, which adds data of 16 bits in FP32 without
// a copy of them; by execute() over anything else.
void sum_rows(const Plan& plan, torch::jit::Stack& stack);

}  // namespace plimsoll::autoscale
