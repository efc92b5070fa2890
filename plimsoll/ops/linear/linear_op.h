// torch.ops.plimsoll.linear: without codes and without state, made of ops that compilers see.
#pragma once

#include <torch/library.h>

namespace plimsoll::ops {

// Computes in dtype, by default that of the weight. Differentiable once.
void define_linear(torch::Library& library);

}  // namespace plimsoll::ops
