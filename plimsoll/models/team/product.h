// A weight, packed or read in place, as threads of a team multiply with it: each computes a part of the columns.
#pragma once

#include <ATen/core/TensorBody.h>

#include <vector>

#include "plimsoll/models/team/low_rank.h"
#include "plimsoll/ops/tensor/gemm.h"

namespace plimsoll::models {

struct StepProduct {
  ops::ScaledTensor weight = {};  // [columns, in]; where it is packed, data need only have the shape
  ops::PackedWeight packed = {};
  at::Tensor bias = {};                    // fp32 [columns], or undefined
  std::vector<StepLowRank> adapters = {};  // of some of the rows; what they add is not part of multiply()

  // Whether there is a weight, for the instruction set in force if it is packed; others' results are errors.
  bool fits() const { return packed.data.defined() ? packed.isa == runtime::matmul_isa() : weight.data.defined(); }
  int64_t columns() const { return weight.data.size(0); }

  // x weight^T + bias: part `index` of `parts` of the columns, by the calling thread alone.
  void multiply(const StepRows& rows, int64_t index, int64_t parts) const;
  // The columns of a part.
  struct Columns {
    int64_t begin, end;
  };
  Columns part(int64_t index, int64_t parts) const;
};

}  // namespace plimsoll::models
