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

// Codes of the weight for both of its products, as a layer under the recipe would make them now. delayed_scale: the scale
// of the layer's slot, read where the recipe has delayed scaling; undefined, or kNoScale: none yet.
GivenCodes codes_of_weight(const at::Tensor& weight, const recipe::Recipe& recipe, const at::Tensor& delayed_scale);

}  // namespace plimsoll::ops
