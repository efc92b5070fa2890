// Values of weights that are codes.
#pragma once

#include <ATen/core/TensorBody.h>

#include <vector>

#include "plimsoll/ops/linear/code_source.h"

namespace plimsoll::ops {

// [rows of all sources, in] of kFloat, kBFloat16 or kHalf: code * scale in FP32, then one rounding. Stored codes alone.
at::Tensor decode_codes(const std::vector<CodeSource>& sources, CodeKind kind, at::ScalarType dtype);

}  // namespace plimsoll::ops
