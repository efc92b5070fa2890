// The exponents under which every tensor fits FP16 and least is lost to its subnormal numbers.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "plimsoll/gauge/fp16_range.h"
#include "plimsoll/models/freedoms.h"
#include "plimsoll/watch/slots.h"

namespace plimsoll::gauge {

using WeightRanges = std::map<std::string, ExponentCounts>;  // of parameters, by name

// Takes what an FP32 forward pass has reached. A value that is not finite is an error.
void raise_to(models::Amaxes& amaxes, const std::vector<watch::Record>& records);

// First, headroom_bits between the amax of each value and weight and FP16's largest number, as nearly as the freedoms
// allow; then the fewest bits of the weights' precision lost; then the smallest exponents. Given the residual stream's
// exponent no pair touches another one, so each is searched by itself. A name that is missing from the maps is an
// error; all amaxes must be finite.
models::Exponents search(const models::Freedoms& freedoms, const WeightRanges& weights, const models::Amaxes& values,
                         int headroom_bits);

}  // namespace plimsoll::gauge
