// torch.ops.plimsoll.softmax*: schemas, kernels for CPUs and CUDA devices, for Meta, and calls through the dispatcher.
#pragma once

#include <torch/library.h>

#include <optional>
#include <string_view>

namespace plimsoll::ops {

void define_softmax(torch::Library& library);
void register_softmax(torch::Library& library);
void register_softmax_meta(torch::Library& library);

namespace dispatch {

at::Tensor softmax_forward(const at::Tensor& x, double scale, std::string_view mask_type,
                           const std::optional<at::Tensor>& mask);
at::Tensor softmax_backward(const at::Tensor& y, const at::Tensor& grad, double scale);

}  // namespace dispatch
}  // namespace plimsoll::ops
