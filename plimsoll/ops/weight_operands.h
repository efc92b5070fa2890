// The weight of a linear layer for its products, quantized now or kept from the first microbatch.
#pragma once

#include "plimsoll/ops/linear_scaling.h"
#include "plimsoll/ops/operand_maker.h"

namespace plimsoll::ops {

struct WeightOperands {
  Operands operands;
  const PackedWeight* packed = nullptr;  // in the layer's cache
};

// As scaling.is_first_microbatch says. operands.grad_input is defined if wanted.
WeightOperands weight_operands(const at::Tensor& weight, const LinearScaling& scaling, OperandMaker& maker,
                               bool wants_grad_input);

}  // namespace plimsoll::ops
