// Hooks around a module's forward pass, which torch has in Python only. Sharded parameters come and go here
// (shard/engine/fully_sharded.h).
#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>

namespace plimsoll::nn {

struct ForwardHooks {
  std::function<void()> before;
  std::function<void(at::TensorList outputs)> after;  // undefined ones among them
};

}  // namespace plimsoll::nn
