// Scaled dot-product attention on the library's kernel, which reads the data where they lie: the exponents of query and
// key go into the factor of the scores, and that of value is the result's.
#pragma once

#include <ATen/core/stack.h>

#include "plimsoll/autoscale/plan.h"

namespace plimsoll::autoscale {

// _scaled_dot_product_flash_attention_for_cpu and its gradient; by execute() where the kernel does not do as torch
// does, and for policies that look at each result.
void attend(const Plan& plan, torch::jit::Stack& stack);
void attend_backward(const Plan& plan, torch::jit::Stack& stack);

}  // namespace plimsoll::autoscale
