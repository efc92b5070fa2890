// A kernel that writes its result in whatever format its reader wants.
#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>

#include "plimsoll/format/format.h"
#include "plimsoll/ops/tensor/scale_ref.h"

namespace plimsoll::ops {

struct Produced {
  at::Tensor values;  // [rows, cols], kByte for codes
  AmaxSlot amax;      // before they were scaled
};
// codes = encode(value / scale). Called once.
using Producer = std::function<Produced(format::Format format, const ScaleRef& scale)>;

}  // namespace plimsoll::ops
