// The kernels behind the schemas of cross_entropy_op.cpp, for CPUs and CUDA devices: checks, allocation, chunks, reduction.
#pragma once

#include <ATen/core/TensorBody.h>

#include <array>
#include <optional>
#include <string_view>
#include <tuple>

namespace plimsoll::ops {

std::tuple<at::Tensor, at::Tensor> cross_entropy_forward_pass(const at::Tensor& logits, const at::Tensor& targets,
                                                              const std::optional<at::Tensor>& weight,
                                                              std::string_view reduction, int64_t ignore_index,
                                                              double label_smoothing, bool wants_grad);

at::Tensor cross_entropy_backward_pass(const at::Tensor& grad, const at::Tensor& logits, const at::Tensor& targets,
                                       const std::optional<at::Tensor>& weight, std::string_view reduction,
                                       int64_t ignore_index, double label_smoothing);

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_forward_pass(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets, std::string_view reduction,
    int64_t ignore_index, double label_smoothing, at::ScalarType dtype, std::array<bool, 2> wants_grad);

// The dtype of the logits that linear_cross_entropy holds for a while, and of grad_hidden, for products in `dtype`.
inline at::ScalarType cross_entropy_logits_dtype(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? at::kBFloat16 : at::kFloat;
}

// Bytes of logits that linear_cross_entropy holds at a time. Each chunk packs the head anew, twice. On a device each chunk moves 16 bytes for an element of the weight's FP32
// gradient, as long as 5,000 operations of its products; with 512 MiB of BF16, 2,048 rows of 128k, these are 12,000.
inline constexpr int64_t kHeldLogits = int64_t{128} << 20, kHeldLogitsOnDevice = int64_t{512} << 20;

// Rows of logits held at a time: equal chunks of at most so many bytes.
int64_t cross_entropy_chunk_rows(int64_t rows, int64_t vocabulary, int64_t bytes_per_logit,
                                 int64_t most_bytes = kHeldLogits);

}  // namespace plimsoll::ops
