// Weights for inference that multiply the same x: joined by rows and packed, once, for the instruction set in force.
#pragma once

#include <ATen/core/TensorBody.h>

#include <vector>

#include "plimsoll/ops/gemm.h"

namespace plimsoll::nn {

class PackedWeights {
 public:
  enum class Form : uint8_t {
    kValues,
    kCodes,  // E4M3, one byte an element, with one scale a row
  };

  // weights: [out, in] each, of one dtype, fp32, bf16 or fp16.
  PackedWeights(const std::vector<at::Tensor>& weights, Form form);

  // x [..., in] -> [..., sum of out] in the dtype of x. Records no gradient.
  at::Tensor multiply(const at::Tensor& x) const;

 private:
  ops::ScaledTensor weight_;  // its elements are those of `packed_`: data has the shape alone
  ops::PackedWeight packed_;
};

}  // namespace plimsoll::nn
