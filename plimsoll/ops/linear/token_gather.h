// Operands of all tokens where each rank has its own tokens (LinearParallel::gathers). Each quantizes its own and the
// codes travel with their scales, one byte an element; the result has the bits that one rank would have made of all
// tokens. Where codes made apart would have others (blocks of rows that do not divide a rank's tokens, a scale for each
// column), values travel.
#pragma once

#include <ATen/core/TensorBody.h>

#include "plimsoll/ops/linear/linear_scaling.h"
#include "plimsoll/ops/linear/operand_maker.h"

namespace plimsoll::ops {

// Whether what travels for this product is codes (plain values, where the recipe has none); true where nothing travels.
bool codes_travel(const LinearScaling& scaling, recipe::Role role, recipe::GemmKind gemm, int64_t rows);

// From the operand of this rank's tokens. The same tensor where this rank has all.
ScaledTensor of_all_tokens(const LinearScaling& scaling, recipe::Role role, const ScaledTensor& local);

// From values [tokens, cols] of this rank.
at::Tensor values_of_all_tokens(const LinearScaling& scaling, recipe::Role role, const at::Tensor& local);

// The output's gradient [tokens, out] of this rank, for products over all tokens. column_sum as in OperandMaker::make.
Operands make_gradient(const at::Tensor& grad, const LinearScaling& scaling, OperandMaker& maker, GemmSet wanted,
                       at::Tensor* column_sum);

// For grad_weight, the input that `producer` makes again with the scale of the forward pass. rows: of this rank.
ScaledTensor produce_input_again(const Producer& producer, int64_t rows, const LinearScaling& scaling,
                                 const OperandMaker& maker, const ScaleRef& scale);

}  // namespace plimsoll::ops
