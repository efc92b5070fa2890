// Exponents of single channels that stand out from the others of their pair.
#pragma once

#include <ATen/core/TensorBody.h>

#include <map>
#include <string>

#include "plimsoll/models/freedoms.h"

namespace plimsoll::gauge {

// A channel's exponent takes half of the bits by which the amax of its growing weights, over that of its shrinking ones, is
// beyond the median of the pair's channels: an outlier that was multiplied into the one and out of the other is undone. Nothing
// reads a channel whose shrinking weights are 0: its exponent makes the growing ones as large as the median of the channels. None
// of less than 4 bits, and none of channels without growing weights. Where a weight acts as 1 + w, so many of the bits that FP32
// holds the new w. weights: by GaugedTensor::name. All other exponents are 0.
models::Exponents balanced_channels(const models::Freedoms& freedoms, const std::map<std::string, at::Tensor>& weights);

// Exponents that take the given ones back.
models::Exponents inverse(models::Exponents exponents);

}  // namespace plimsoll::gauge
