// A kernel that writes its result in whatever format its reader wants.
#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>

#include "plimsoll/format/format.h"

namespace plimsoll::ops {

struct Produced {
  at::Tensor values;  // [rows, cols], kByte for codes
  float amax = 0;     // before inv_scale
};
// codes = encode(value * inv_scale). Called once.
using Producer = std::function<Produced(format::Format format, float inv_scale)>;

}  // namespace plimsoll::ops
