// Activation checkpointing: a part of a model computes without keeping what backward needs, and backward computes it
// again.
//
//   const std::vector<at::Tensor> outputs =
//       nn::checkpoint([&](const auto& x) { return std::vector{block->forward(x[0])}; }, {x}, block->parameters());
#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>
#include <vector>

namespace plimsoll::nn {

using Segment = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// segment(inputs), whose second run has the bits of the first: the same random numbers, torch::autocast, Fp8Autocast
// and scales, and no scaling state changes. Of the inputs some may be undefined, of the outputs none. Gradients reach
// `inputs` and `parameters`: those that the segment reads, and nothing else of what it reads gets any.
std::vector<at::Tensor> checkpoint(const Segment& segment, const std::vector<at::Tensor>& inputs,
                                   const std::vector<at::Tensor>& parameters);

}  // namespace plimsoll::nn
