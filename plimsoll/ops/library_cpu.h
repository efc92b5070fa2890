// The CPU kernels behind the schemas of library.cpp: checks, allocation, and the kernel.
#pragma once

#include <ATen/core/TensorBody.h>
#include <torch/library.h>

#include <optional>
#include <string_view>
#include <tuple>

namespace plimsoll::ops {

void register_cpu(torch::Library& library);

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> norm_forward_cpu(const at::Tensor& x,
                                                                            const std::optional<at::Tensor>& residual,
                                                                            const at::Tensor& weight,
                                                                            const std::optional<at::Tensor>& bias,
                                                                            std::string_view kind, bool zero_centered,
                                                                            double epsilon, at::ScalarType dtype);

std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_backward_cpu(
    const at::Tensor& grad, const std::optional<at::Tensor>& grad_sum, const at::Tensor& x, const at::Tensor& weight,
    const at::Tensor& mean, const at::Tensor& rstd, std::string_view kind, bool zero_centered, double epsilon);

}  // namespace plimsoll::ops
