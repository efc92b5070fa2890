// E2M1 codes of weights, nearest even, blocks along rows.
#pragma once

#include <ATen/core/TensorBody.h>

#include <vector>

#include "plimsoll/format/fp4_block.h"
#include "plimsoll/ops/linear/code_source.h"

namespace plimsoll::ops {

struct Fp4Codes {
  at::Tensor codes;         // uint8 [rows, ceil(in / 2)], the element of even index in the low half
  at::Tensor scale;         // uint8 [rows, ceil(in / block)]: E4M3 or E8M0
  at::Tensor tensor_scale;  // fp32 [1]; undefined for MXFP4
};

// Codes of the rows of all sources, one after another; the tensor scale is of all of them. A weight that holds NaN or
// Inf makes its block NaN, and under NVFP4 all of them.
Fp4Codes fp4_codes_of(const std::vector<CodeSource>& sources, format::Fp4Scaling scaling);

}  // namespace plimsoll::ops
