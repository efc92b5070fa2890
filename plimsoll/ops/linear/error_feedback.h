// Codes of weights that err least where the inputs of their product are known: what a column loses when it is rounded, the columns
// after it make up for. Source: Frantar et al., "GPTQ", arXiv 2210.17323.
#pragma once

#include <ATen/core/TensorBody.h>

#include "plimsoll/ops/linear/fp4_codes.h"
#include "plimsoll/ops/tensor/scaled_tensor.h"
#include "plimsoll/recipe/operand.h"

namespace plimsoll::ops {

// x^T x of inputs x [..., in], fp32, bf16 or fp16: fp64 [in, in], of sums in FP32. Bits do not depend on the number of threads.
at::Tensor input_squares(const at::Tensor& x);

// U, fp64 [in, in], upper triangular, U^T U = (squares + d I)^-1 with d = 1 % of the mean of the diagonal; the identity for squares
// of zeros. squares: fp64 [in, in], finite, as input_squares() gives them, or their sum. On one thread, so that bits do not depend
// on how many there are.
at::Tensor error_feedback(const at::Tensor& squares);

// As fp4_codes_of() of one source of finite values, under kNvfp4 or kMxfp4. `in` is a multiple of the block. With a diagonal
// feedback they are its codes, but for the sign of a zero.
Fp4Codes fp4_codes_with_feedback(const CodeSource& source, format::Fp4Scaling scaling, float amax,
                                 const at::Tensor& feedback);

// As codes_of() of one source of finite values, by rows or in blocks of 128 x 128. A block's scale is of the values that its columns
// have when the first of them is rounded; that of a row is of the weights as they were. With a diagonal feedback they are its codes,
// but for the sign of a zero.
ScaledTensor fp8_codes_with_feedback(const CodeSource& source, recipe::Granularity granularity,
                                     const at::Tensor& feedback);

}  // namespace plimsoll::ops
