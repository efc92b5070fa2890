// torch.ops.plimsoll.norm*: schemas, kernels for CPUs and CUDA devices, for Meta, and calls through the dispatcher.
#pragma once

#include <torch/library.h>

#include <optional>
#include <string_view>
#include <tuple>

#include "plimsoll/ops/norm/norm.h"

namespace plimsoll::ops {

void define_norm(torch::Library& library);
void register_norm(torch::Library& library);
void register_norm_meta(torch::Library& library);

// kind: "layernorm", "rmsnorm".
NormOptions parse_norm_options(std::string_view kind, bool zero_centered, double epsilon);

namespace dispatch {

// {output, sum, mean, rstd}; sum is empty without a residual, mean with RMSNorm.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> norm_forward(
    const at::Tensor& x, const std::optional<at::Tensor>& residual, const at::Tensor& weight,
    const std::optional<at::Tensor>& bias, const NormOptions& options, at::ScalarType dtype);

// {dx, dweight, dbias} for the sum that was normalised.
struct NormBackward {
  at::Tensor grad;
  std::optional<at::Tensor> grad_sum;
  at::Tensor x, weight, mean, rstd;
};
std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_backward(const NormBackward& args, const NormOptions& options);

}  // namespace dispatch
}  // namespace plimsoll::ops
