// Codes of a whole operand that somebody makes outside its layer: sharded weights arrive as codes.
#pragma once

#include <optional>

#include "plimsoll/ops/linear_scaling.h"
#include "plimsoll/ops/quantize.h"

namespace plimsoll::ops {

// How the layer would quantize its weight of this amax now: one scale for the tensor, the same codes for each product.
// Nothing where the recipe has none such: high precision, rows, blocks.
std::optional<QuantizeOptions> weight_codes(const recipe::Recipe& recipe, LinearState& state, float amax);

}  // namespace plimsoll::ops
