// Whether the ranks have the same model, before they exchange its tensors.
#pragma once

#include <torch/nn/module.h>

#include "plimsoll/shard/communicator.h"

namespace plimsoll::shard {

// A collective. Throws c10::ValueError on every rank, which names the ranks whose parameters or buffers differ from
// rank 0's in name, shape, dtype or requires_grad, unless all have the same.
void expect_same_model(const torch::nn::Module& module, const Communicator& ranks);

}  // namespace plimsoll::shard
