// Norm and linear as one op: the norm writes the codes that the product reads. Bit-equal to norm() and linear() one
// after the other.
#pragma once

#include "plimsoll/ops/linear/linear_scaling.h"
#include "plimsoll/ops/norm/norm.h"

namespace plimsoll::ops {

// weight [out, in], bias [out] or undefined. Saved for backward: what was normalised, mean, rstd and the weight's
// codes; the codes of the normalised input are made again in backward, with the same bits.
NormOutput norm_linear(const NormInput& input, const NormOptions& options, const at::Tensor& weight,
                       const at::Tensor& bias, const LinearScaling& scaling);

}  // namespace plimsoll::ops
