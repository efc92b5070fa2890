// Operands of products as codes with a scale for each block along the sum: MXFP8, NVFP4, MXFP4. Codes are of the data,
// whose exponent is not theirs: data times a power of two have the same codes and scales times that power.
#pragma once

#include <ATen/core/TensorBody.h>

#include <array>

#include "plimsoll/autoscale/session.h"
#include "plimsoll/ops/tensor/gemm_matrix.h"
#include "plimsoll/ops/tensor/scaled_tensor.h"
#include "plimsoll/recipe/operand.h"

namespace plimsoll::autoscale {

// Whether the format has scales of blocks.
bool has_block_scales(ProductFormat format);

struct BlockOperand {
  at::Tensor matrix;                            // [rows, sum], any strides
  ProductFormat format = ProductFormat::kData;  // without scales of blocks: it has no codes here
  recipe::Role role = recipe::Role::kInput;
};

// Without data where there are no codes: the product reads the operand as it is.
struct BlockCodes {
  ops::ScaledTensor codes = {};
  ops::Use use = ops::Use::kAsStored;

  bool defined() const { return codes.data.defined(); }
  ops::GemmMatrix matrix() const { return ops::gemm_matrix(codes, use); }
};

// Codes of both operands of a product. An empty operand, and one with Inf or NaN, has none. Under kNvfp4 a gradient and an
// input are both rotated, if both have codes: their sums are longer then, by zeros to a multiple of 16. Seeds are
// drawn from torch's CPU generator, one for two rotated operands and one for any other gradient that is rounded
// stochastically. Same bits for any number of threads.
std::array<BlockCodes, 2> encode_blocks(const std::array<BlockOperand, 2>& operands);

}  // namespace plimsoll::autoscale
