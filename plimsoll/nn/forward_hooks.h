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

// Settings of a block of layers by the model around it.
struct BlockSwitches {
  ForwardHooks hooks;                   // none
  bool checkpoint_activations = false;  // backward computes the block again, from its inputs
};

}  // namespace plimsoll::nn
