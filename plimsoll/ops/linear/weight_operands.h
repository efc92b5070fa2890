// The weight of a linear layer for its products: held as codes, quantized now, kept from the first microbatch, or kept
// for inference.
#pragma once

#include "plimsoll/ops/linear/linear_scaling.h"
#include "plimsoll/ops/linear/operand_maker.h"

namespace plimsoll::ops {

struct WeightOperands {
  Operands operands;
  PackedWeight packed;  // of operands.output; undefined: the product packs
};

struct WeightUse {
  bool grad_input = false;  // operands.grad_input is wanted
  bool training = false;    // the caller's grad mode
};

// Held or given codes as they are. Else as scaling.is_first_microbatch says. Where it says nothing, outside training,
// an unchanged weight is kept from call to call, quantized and packed; while somebody watches it is measured each time.
WeightOperands weight_operands(const at::Tensor& weight, const LinearScaling& scaling, OperandMaker& maker,
                               WeightUse use);

}  // namespace plimsoll::ops
