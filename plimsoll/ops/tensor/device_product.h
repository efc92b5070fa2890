// Products on a CUDA device, by torch's libraries. Their sums are in an order of their own: bits are those of the card and the
// library, not the CPU's.
#pragma once

#include "plimsoll/ops/tensor/gemm.h"

namespace plimsoll::ops {

// multiply() of operands on a device, without the epilogue's activation, aux and column sum. Codes with one scale for the tensor, or
// one for each row of both matrices, are multiplied as they are where the card can (k and n multiples of 16, not E5M2 by E5M2); of all
// others the values are, in BF16 where that holds them exactly, else in FP32.
void multiply_on_device(const Product& product, const at::Tensor& output, format::Format codes);

}  // namespace plimsoll::ops
