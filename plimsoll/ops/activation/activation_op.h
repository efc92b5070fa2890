// torch.ops.plimsoll.activation*: schemas, kernels for CPUs and CUDA devices, for Meta, and calls through the dispatcher.
#pragma once

#include <torch/library.h>

#include <string_view>

namespace plimsoll::ops {

void define_activation(torch::Library& library);
void register_activation(torch::Library& library);
void register_activation_meta(torch::Library& library);

namespace dispatch {

at::Tensor activation_forward(const at::Tensor& x, std::string_view kind, at::ArrayRef<double> parameters);
at::Tensor activation_backward(const at::Tensor& x, const at::Tensor& grad, std::string_view kind,
                               at::ArrayRef<double> parameters);

}  // namespace dispatch
}  // namespace plimsoll::ops
