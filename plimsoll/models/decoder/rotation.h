// Rotation of a decoder's residual stream, folded into its weights. Every state x of the stream becomes R x, R = H D: D
// is diagonal, of random signs, and H a Hadamard matrix over the root of its size on each group of consecutive elements,
// as many as the largest power of two that divides the states' width. RMS norms commute with R once their weights are
// folded into the matrices behind them, so the model computes what it did, up to rounding, while outliers of single
// channels of weights and states are spread over a group: narrow formats with few exponents lose less (QuaRot, arXiv
// 2404.00456). A tied head becomes one of its own, which has the last norm's weight in it.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <optional>
#include <string>

#include "plimsoll/models/decoder/config.h"

namespace plimsoll::models {

class ResidualRotation {
 public:
  // Throws std::invalid_argument for a model whose stream has something else than RMS norms that only read it.
  ResidualRotation(const DecoderConfig& config, uint64_t seed);

  // The rotated model's: with a head of its own.
  const DecoderConfig& config() const { return config_; }
  // Elements of a group.
  int64_t size() const { return size_; }

  // The norm whose weight is folded into a parameter, both by their names in the model.
  static std::optional<std::string> folded_norm(const std::string& parameter);

  // A parameter of the rotated model, fp32, of its values before, of any floating dtype: all rows of it, or those of a
  // part that columns alone are rotated of. norm_weight [dim] as folded_norm has it; undefined where it has none.
  // Sums are in double, and rounded once.
  at::Tensor rotated(const std::string& parameter, const at::Tensor& values, const at::Tensor& norm_weight) const;

 private:
  // x R^T for rows x [.., dim], in double.
  at::Tensor of_rows(const at::Tensor& rows) const;
  // The same of rows [.., dim] of any floating dtype, times a norm's weight (double [dim]) if there is one, rounded to fp32. It
  // takes few rows at a time, for in double they take several times the memory of a matrix.
  at::Tensor rounded_rows(const at::Tensor& rows, const at::Tensor& norm_weight) const;

  DecoderConfig config_;
  int64_t size_;
  at::Tensor signs_;  // double [dim], over the root of the size
};

}  // namespace plimsoll::models
