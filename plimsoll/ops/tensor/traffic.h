// Bytes that an op moves, for watch::Span: "bytes = traffic(x, y)" counts each tensor once, undefined ones as nothing.
#pragma once

#include <ATen/core/TensorBody.h>

namespace plimsoll::ops {

template <class... Tensors>
double traffic(const Tensors&... tensors) {
  return (0.0 + ... + static_cast<double>(tensors.defined() ? tensors.nbytes() : 0));
}

}  // namespace plimsoll::ops
