// LayerNorm and its gradients on the library's kernel, which reads and writes 16 bits: exponents of the input go into
// epsilon, those of the results into the weight.
#pragma once

#include <ATen/core/stack.h>

#include "plimsoll/autoscale/plan.h"

namespace plimsoll::autoscale {

// native_layer_norm and native_layer_norm_backward. By execute() where the kernel does not do the same, where something
// is not finite, and for other policies than autoscale.
void normalize(const Plan& plan, torch::jit::Stack& stack);
void normalize_backward(const Plan& plan, torch::jit::Stack& stack);

}  // namespace plimsoll::autoscale
