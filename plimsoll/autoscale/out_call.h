// Variants of operators that write their results into tensors of the caller's (out=).
#pragma once

#include <ATen/core/stack.h>

#include "plimsoll/autoscale/plan.h"

namespace plimsoll::autoscale {

// Runs the functional operator of `plan`, and writes its results into the tensors that follow its arguments on the
// stack, which are scaled or plain. A tensor of other sizes is resized, as torch does.
void run_into(const Plan& plan, torch::jit::Stack& stack);

}  // namespace plimsoll::autoscale
