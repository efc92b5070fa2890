// Codes of a whole operand that somebody makes outside its layer: sharded weights arrive as codes.
#pragma once

#include <optional>

#include "plimsoll/ops/linear/linear_scaling.h"
#include "plimsoll/ops/tensor/quantize.h"

namespace plimsoll::ops {

// One scale for a weight, and the same codes for each product: not in high precision, nor by rows or blocks.
bool has_tensor_codes(const recipe::Recipe& recipe);

// The options by which the layer would quantize its weight of this amax now. None where the recipe has no such codes.
std::optional<QuantizeOptions> weight_codes(const recipe::Recipe& recipe, LinearState& state, const AmaxSlot& amax);

}  // namespace plimsoll::ops
