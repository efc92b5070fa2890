// What operators do to tensors of several scales: views, signs, products, sums, reductions within a block, and products
// of matrices with scales of rows on the left and of columns on the right keep them. Every other operator sees one
// power of two, rounded to the session's format (one_scale.h).
#pragma once

#include <ATen/core/stack.h>

#include "plimsoll/autoscale/plan.h"

namespace plimsoll::autoscale {

// Runs one call, whose operands may have several scales.
void run_with_scales(const Plan& plan, torch::jit::Stack& stack, void (*run)(const Plan&, torch::jit::Stack&));

}  // namespace plimsoll::autoscale
