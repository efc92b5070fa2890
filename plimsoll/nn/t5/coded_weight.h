// A weight for inference as E4M3 codes, one byte an element, with one scale a row.
#pragma once

#include <ATen/core/TensorBody.h>

#include "plimsoll/ops/gemm.h"

namespace plimsoll::nn {

// Packed for the instruction set that is in force; the codes are held once.
class CodedWeight {
 public:
  // weight [out, in], fp32, bf16 or fp16.
  explicit CodedWeight(const at::Tensor& weight);

  // x [..., in] -> x weight^T [..., out] in the dtype of x. Records no gradient.
  at::Tensor multiply(const at::Tensor& x) const;

 private:
  ops::ScaledTensor weight_;  // its codes are those of `packed_`: data has the shape alone
  ops::PackedWeight packed_;
};

}  // namespace plimsoll::nn
