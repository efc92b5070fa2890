// A scaled tensor of one power of two from what a file, or a user, has of it.
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>

#include "plimsoll/autoscale/session.h"

namespace plimsoll::autoscale {

struct Parts {
  at::Tensor data;  // of the session's format or wider
  int32_t exponent = 0;
};
// value = data * 2^exponent. Data that the session's format does not hold are an error.
at::Tensor join(const Parts& parts, const std::shared_ptr<Session>& session);
// SharedScale::remainder of a parameter, of its data's format and sizes: a copy.
void set_remainder(const at::Tensor& parameter, const at::Tensor& remainder);

}  // namespace plimsoll::autoscale
