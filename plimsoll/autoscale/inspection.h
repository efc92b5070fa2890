// The calls of a session with the scales that went in and came out, while somebody asks for them.
#pragma once

#include <ATen/core/stack.h>

#include "plimsoll/autoscale/plan.h"

namespace plimsoll::autoscale {

// Runs one call, and notes it where its session is inspected.
void run_inspected(const Plan& plan, torch::jit::Stack& stack);

}  // namespace plimsoll::autoscale
