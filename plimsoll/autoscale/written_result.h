// Result that a kernel has written in 16 bits at an exponent that was foreseen.
#pragma once

#include <optional>

#include "plimsoll/autoscale/storage.h"

namespace plimsoll::autoscale {

// data * 2^exponent. Nothing where the format has cut off what it would hold at another exponent.
std::optional<Encoded> encoded_as_written(const at::Tensor& data, int32_t exponent, Session& session);

}  // namespace plimsoll::autoscale
