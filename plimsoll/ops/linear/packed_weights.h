// Weights for inference that multiply the same x: joined by rows and packed, once, for the instruction set in force.
#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>
#include <vector>

#include "plimsoll/ops/tensor/gemm.h"

namespace plimsoll::ops {

// Weight that codes are made of.
struct CodeSource {
  at::Tensor weight = {};           // [out, in], fp32, bf16 or fp16
  std::function<void()> done = {};  // called whenever a part of it has been read
};

// E4M3 codes of the rows of all sources, one after another, [rows, in]; by blocks of rows the values are joined first.
ScaledTensor codes_of(const std::vector<CodeSource>& sources, recipe::Granularity granularity);

class PackedWeights {
 public:
  // Values: [out, in] each, of one dtype, fp32, bf16 or fp16.
  explicit PackedWeights(const std::vector<at::Tensor>& weights);
  // E4M3 codes, one byte an element, with one scale a row.
  explicit PackedWeights(const std::vector<CodeSource>& sources);

  struct Output {
    at::Tensor values;
    AmaxSlot amax;  // before they were rounded
  };
  // x [..., in] -> [..., sum of out] in the dtype of x. Records no gradient.
  Output multiply(const at::Tensor& x) const;

  // The weight for products made elsewhere; its elements are those of `packed` alone.
  const ScaledTensor& operand() const { return weight_; }
  const PackedWeight& packed() const { return packed_; }

 private:
  void pack(ScaledTensor weight);
  kernels::GemmOperand gemm_operand() const;  // without its elements

  ScaledTensor weight_;  // its elements are those of `packed_`: data has the shape alone
  PackedWeight packed_;
};

}  // namespace plimsoll::ops
