// Values of a model between its products, and what FP16 has left above them.
#pragma once

#include <nlohmann/json.hpp>

#include "plimsoll/models/freedoms.h"

namespace plimsoll::app {

// [{"name", "amax", "headroom_bits", "bound", "bound_headroom_bits"}], least headroom first: the largest value on inputs
// and the bound that no input exceeds, both in FP32, and the bits from each to the largest number of FP16. Bits of a
// value that is 0, and numbers that are not finite, are null.
nlohmann::json value_rows(const models::Amaxes& seen, const models::Amaxes& bounds);

}  // namespace plimsoll::app
