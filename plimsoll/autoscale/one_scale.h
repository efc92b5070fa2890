// Operators without a rule for several scales: they see tensors of one power of two.
#pragma once

#include <ATen/core/stack.h>

#include "plimsoll/autoscale/plan.h"

namespace plimsoll::autoscale {

// Name under which Session::counts() has the tensors of several scales that were rounded to one.
inline constexpr const char* kOneScale = "autoscale::one_scale";

// Runs one call. What it writes into keeps its scales.
void run_in_one_scale(const Plan& plan, torch::jit::Stack& stack);

}  // namespace plimsoll::autoscale
