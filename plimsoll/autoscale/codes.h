// Operands of products in FP8 with one scale, at the power of two that their scale and their largest element give.
#pragma once

#include <ATen/core/TensorBody.h>

#include "plimsoll/autoscale/operands.h"
#include "plimsoll/format/format.h"

namespace plimsoll::autoscale {

// The format of data as a product reads them: float8_e4m3fn and float8_e5m2 as codes, others by ops::format_of.
format::Format operand_format(at::ScalarType dtype);

// operand.data become codes of `dtype`, float8_e4m3fn or float8_e5m2, and operand.scale theirs. The largest element
// fits: the exponent is rounded up. Codes are of a whole memory and stay beside it until it is written to, so all
// products that read it, forward and backward, share them. An operand with Inf or NaN stays as it is.
void encode_operand(Operand& operand, at::ScalarType dtype);

}  // namespace plimsoll::autoscale
