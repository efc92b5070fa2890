// A scaled tensor from what a file, or a user, has of it.
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>

#include "plimsoll/autoscale/session.h"

namespace plimsoll::autoscale {

struct Parts {
  at::Tensor data;  // of the session's format or wider
  int32_t exponent = 0;
  at::Tensor remainder = {};  // of a parameter: SharedScale::remainder, of the data's format and sizes
};
// value = data * 2^exponent. Data that the session's format does not hold are an error.
at::Tensor join(const Parts& parts, const std::shared_ptr<Session>& session);

}  // namespace plimsoll::autoscale
