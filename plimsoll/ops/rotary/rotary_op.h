// torch.ops.plimsoll.rotary*: schemas, kernels for CPUs and CUDA devices, for Meta, and calls through the dispatcher.
#pragma once

#include <torch/library.h>

#include "plimsoll/ops/rotary/rotary.h"

namespace plimsoll::ops {

void define_rotary(torch::Library& library);
void register_rotary(torch::Library& library);
void register_rotary_meta(torch::Library& library);

enum class Turn : uint8_t { kForward, kTransposed };  // transposed: of a gradient

namespace dispatch {

at::Tensor rotary(const at::Tensor& x, const RotaryTurns& turns, const RotaryOptions& options, Turn turn);

}  // namespace dispatch
}  // namespace plimsoll::ops
