// Weights for inference that multiply the same x: joined by rows and packed, once, for the instruction set in force.
#pragma once

#include <ATen/core/TensorBody.h>

#include <vector>

#include "plimsoll/format/fp4_block.h"
#include "plimsoll/ops/linear/code_source.h"
#include "plimsoll/ops/tensor/gemm.h"

namespace plimsoll::ops {

// E4M3 codes of the rows of all sources, one after another, [rows, in]; by blocks of rows the values are joined first.
// Stored codes stay as they are, whatever the granularity; without a copy where there is one source.
ScaledTensor codes_of(const std::vector<CodeSource>& sources, recipe::Granularity granularity);

class PackedWeights {
 public:
  // Values: [out, in] each, of one dtype, fp32, bf16 or fp16.
  explicit PackedWeights(const std::vector<at::Tensor>& weights);
  explicit PackedWeights(const std::vector<CodeSource>& sources, CodeKind kind = CodeKind::kE4m3Rows);

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
  void pack_fp4(const std::vector<CodeSource>& sources, format::Fp4Scaling scaling);
  struct Matrix {
    const at::Tensor& elements;         // [n, k], of E2M1 two a byte
    const void* block_scale = nullptr;  // of E2M1: [n, ceil(k / block)]
    int64_t n = 0, k = 0;
  };
  void pack(ScaledTensor weight, const Matrix& matrix);

  ScaledTensor weight_;  // its elements are those of `packed_`: data has the shape alone
  PackedWeight packed_;
};

}  // namespace plimsoll::ops
