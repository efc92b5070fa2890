// Matrix products on the library's GEMM: the power of two is in its factor, and its amax is the bound of the result.
#pragma once

#include <ATen/core/stack.h>

#include "plimsoll/autoscale/plan.h"

namespace plimsoll::autoscale {

void matmul(const Plan& plan, torch::jit::Stack& stack);          // mm, addmm
void batched_matmul(const Plan& plan, torch::jit::Stack& stack);  // bmm, baddbmm

}  // namespace plimsoll::autoscale
