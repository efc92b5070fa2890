// Our ops through torch's dispatcher, so that fake tensors, compilers and Python see them. Schemas: library.cpp.
#pragma once

#include <ATen/core/TensorBody.h>

#include <optional>
#include <string_view>
#include <tuple>

namespace plimsoll::ops::dispatch {

at::Tensor activation_forward(const at::Tensor& x, std::string_view kind);
at::Tensor activation_backward(const at::Tensor& x, const at::Tensor& grad, std::string_view kind);

at::Tensor softmax_forward(const at::Tensor& x, double scale, std::string_view mask_type,
                           const std::optional<at::Tensor>& mask);
at::Tensor softmax_backward(const at::Tensor& y, const at::Tensor& grad, double scale);

// What a norm reads besides tensors.
struct Norm {
  std::string_view kind;  // "layernorm", "rmsnorm"
  bool zero_centered;
  double epsilon;
};

// {output, sum, mean, rstd}; sum is empty without a residual, mean with RMSNorm.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> norm_forward(const at::Tensor& x,
                                                                        const std::optional<at::Tensor>& residual,
                                                                        const at::Tensor& weight,
                                                                        const std::optional<at::Tensor>& bias,
                                                                        const Norm& norm, at::ScalarType dtype);

// {dx, dweight, dbias} for the sum that was normalised.
struct NormBackward {
  at::Tensor grad;
  std::optional<at::Tensor> grad_sum;
  at::Tensor x, weight, mean, rstd;
};
std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_backward(const NormBackward& args, const Norm& norm);

// A product of plain values; kind: "output", "grad_input" or "grad_weight".
at::Tensor gemm(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias, std::string_view kind,
                at::ScalarType dtype);
at::Tensor column_sum(const at::Tensor& x);

}  // namespace plimsoll::ops::dispatch
