// The scale of a result from those of the operands, and what that asks of data and numbers.
#pragma once

#include <ATen/core/stack.h>

#include "plimsoll/autoscale/operands.h"
#include "plimsoll/autoscale/plan.h"
#include "plimsoll/autoscale/scale.h"

namespace plimsoll::autoscale {

struct Composition {
  Scale expected;          // of the result; its exponent is that of what the kernel writes
  Scale product;           // of the operands and numbers that are factors
  int32_t common = 0;      // the exponent of aligned, compared and accumulated operands
  bool far_apart = false;  // a constant, or a tensor beside one, is below the normal numbers of the session's format
};

// The composition for a plan with a rule, under the session's policy; growth over sums is left out.
Composition compose(const Plan& plan, Operands& operands, const torch::jit::Stack& stack);

// With the growth of a result that sums over `terms` elements.
Scale grown(const Scale& scale, Growth growth, int64_t terms);

// Shifts the data and changes the numbers on the stack as the rule says.
void apply(const Composition& composition, const Plan& plan, Operands& operands, torch::jit::Stack& stack);

}  // namespace plimsoll::autoscale
