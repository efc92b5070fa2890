// E2M1 codes of weights, nearest even, blocks along rows.
#pragma once

#include <ATen/core/TensorBody.h>

#include <optional>
#include <vector>

#include "plimsoll/format/fp4_block.h"
#include "plimsoll/ops/linear/code_source.h"
#include "plimsoll/ops/tensor/scaled_tensor.h"

namespace plimsoll::ops {

struct Fp4Codes {
  at::Tensor codes;         // uint8 [rows, ceil(in / 2)], the element of even index in the low half
  at::Tensor scale;         // uint8 [rows, ceil(in / block)]: E4M3 or E8M0
  at::Tensor tensor_scale;  // fp32 [1], [rows] of stored codes with several; undefined for MXFP4
  int64_t cols = 0;         // in
};

// Largest magnitude of all sources: NaN > Inf > finite.
float amax_of_sources(const std::vector<CodeSource>& sources);

// Codes of the rows of all sources, one after another; the tensor scale is of `amax`, which without one is that of all
// of them. A weight that holds NaN or Inf makes its block NaN, and under NVFP4 all of them. Stored codes stay as they
// are.
Fp4Codes fp4_codes_of(const std::vector<CodeSource>& sources, format::Fp4Scaling scaling,
                      std::optional<float> amax = std::nullopt);

// The same values as E4M3 codes, a byte each, for products of which E2M1 is no operand. The scale of a block is E8M0, or
// NVFP4's times the tensor scale, rounded to FP32.
ScaledTensor as_e4m3(const Fp4Codes& codes, format::Fp4Scaling scaling);

}  // namespace plimsoll::ops
