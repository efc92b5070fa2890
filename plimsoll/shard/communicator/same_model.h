// Whether the ranks have the same model, before they exchange its tensors.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

#include "plimsoll/ops/ranks/rank_group.h"

namespace plimsoll::shard {

// A collective. Throws c10::ValueError on every rank, which names the ranks whose parameters or buffers differ from
// rank 0's in name, shape, dtype or requires_grad, unless all have the same.
void expect_same_model(const torch::nn::Module& module, const ops::RankGroup& ranks);
// The same of parts of a model, and of whatever else `setup` says that ranks must agree on.
void expect_same_tensors(const std::vector<std::pair<std::string, at::Tensor>>& tensors, const std::string& setup,
                         const ops::RankGroup& ranks);

}  // namespace plimsoll::shard
