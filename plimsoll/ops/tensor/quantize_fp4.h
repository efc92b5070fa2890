// From a matrix to E2M1 codes of both directions that products reduce over.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <optional>

#include "plimsoll/ops/tensor/scale_ref.h"
#include "plimsoll/ops/tensor/scaled_tensor.h"
#include "plimsoll/recipe/operand.h"

namespace plimsoll::ops {

// Operands as Recipe::stored_operand has them, of one recipe and role; nullopt: not wanted.
struct Fp4Operands {
  recipe::Role role = recipe::Role::kGradOutput;     // has random numbers of its own
  std::optional<recipe::OperandRecipe> rows = {};    // blocks along the rows of x
  std::optional<recipe::OperandRecipe> turned = {};  // blocks along its columns

  void add(const recipe::OperandRecipe& operand) { (operand.turned ? turned : rows) = operand; }
  bool wanted() const { return rows.has_value() || turned.has_value(); }
};

struct QuantizedFp4 {
  ScaledTensor rows, turned;
  AmaxSlot amax;  // of x; rotated, where `rows` are or, without them, `turned`
  // fp32 [5] each, a kernels::QuantizeStatistic of codes that are wanted, where it is, too.
  at::Tensor rows_statistic = {}, turned_statistic = {};
};

// x [rows, cols] of fp32, bf16 or fp16, any strides. `seed` gives the signs of rotations and the random numbers of
// stochastic rounding: operands of one product that were made with one seed have the same signs, and roundings that do
// not depend on each other. measures: what the codes lose is wanted. amax: of x, not rotated, where it is known: read in
// place of x. Same bits on every instruction set and for any number of threads. A block with NaN or Inf is NaN; under
// NVFP4 all blocks are.
QuantizedFp4 quantize_fp4(const at::Tensor& x, const Fp4Operands& operands, uint64_t seed, bool measures = false,
                          const AmaxSlot& amax = {});

}  // namespace plimsoll::ops
