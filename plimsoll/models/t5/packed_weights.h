// Weights for inference that multiply the same x: joined by rows and packed, once, for the instruction set in force.
#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>
#include <vector>

#include "plimsoll/models/team/product.h"

namespace plimsoll::models {

// Weight that codes are made of.
struct CodeSource {
  at::Tensor weight = {};           // [out, in], fp32, bf16 or fp16
  std::function<void()> done = {};  // called whenever a part of it has been read
};

class PackedWeights {
 public:
  // Values: [out, in] each, of one dtype, fp32, bf16 or fp16.
  explicit PackedWeights(const std::vector<at::Tensor>& weights);
  // E4M3 codes, one byte an element, with one scale a row.
  explicit PackedWeights(const std::vector<CodeSource>& sources);

  struct Output {
    at::Tensor values;
    ops::AmaxSlot amax;  // before they were rounded
  };
  // x [..., in] -> [..., sum of out] in the dtype of x. Records no gradient.
  Output multiply(const at::Tensor& x) const;

  // The same for threads of a team.
  StepProduct product() const { return {.weight = weight_, .packed = packed_}; }

 private:
  void pack(ops::ScaledTensor weight);
  kernels::GemmOperand operand() const;  // without its elements

  ops::ScaledTensor weight_;  // its elements are those of `packed_`: data has the shape alone
  ops::PackedWeight packed_;
};

}  // namespace plimsoll::models
