// The exponents under which every tensor fits FP16 and least is lost to its subnormal numbers, by amaxes and weights.
#pragma once

#include <vector>

#include "plimsoll/gauge/range_costs.h"
#include "plimsoll/watch/slots.h"

namespace plimsoll::gauge {

// Takes what an FP32 forward pass has reached. A value that is not finite is an error.
void raise_to(models::Amaxes& amaxes, const std::vector<watch::Record>& records);

// RangeCosts::best(): headroom_bits between the amax of each value and FP16's largest number, and none of the weights
// beyond that, as nearly as the freedoms allow.
models::Exponents search(const models::Freedoms& freedoms, const WeightRanges& weights, const models::Amaxes& values,
                         int headroom_bits);

}  // namespace plimsoll::gauge
