// The CPU kernels behind the schemas of library_loss.cpp: checks, allocation, chunks, reduction.
#pragma once

#include <ATen/core/TensorBody.h>

#include <array>
#include <optional>
#include <string_view>
#include <tuple>

namespace plimsoll::ops {

std::tuple<at::Tensor, at::Tensor> cross_entropy_forward_cpu(const at::Tensor& logits, const at::Tensor& targets,
                                                             const std::optional<at::Tensor>& weight,
                                                             std::string_view reduction, int64_t ignore_index,
                                                             double label_smoothing, bool wants_grad);

at::Tensor cross_entropy_backward_cpu(const at::Tensor& grad, const at::Tensor& logits, const at::Tensor& targets,
                                      const std::optional<at::Tensor>& weight, std::string_view reduction,
                                      int64_t ignore_index, double label_smoothing);

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_forward_cpu(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets, std::string_view reduction,
    int64_t ignore_index, double label_smoothing, at::ScalarType dtype, std::array<bool, 2> wants_grad);

// The dtype of the logits that linear_cross_entropy holds for a while, and of grad_hidden, for products in `dtype`.
inline at::ScalarType cross_entropy_logits_dtype(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? at::kBFloat16 : at::kFloat;
}

// Rows of logits held at a time by linear_cross_entropy: equal chunks of at most 64 MiB.
int64_t cross_entropy_chunk_rows(int64_t rows, int64_t vocabulary, int64_t bytes_per_logit);

}  // namespace plimsoll::ops
