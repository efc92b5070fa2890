// AdamW over parameters of which each rank holds a part: one norm of all gradients, and all ranks update, or none.
#pragma once

#include <memory>
#include <vector>

#include "plimsoll/ops/ranks/rank_group.h"
#include "plimsoll/optim/adamw.h"

namespace plimsoll::shard {

class ShardedAdamW final : public optim::AdamW {
 public:
  // groups: this rank's part; it may be empty. Throws as optim::AdamW.
  ShardedAdamW(const std::vector<optim::NamedGroup>& groups, std::shared_ptr<const ops::RankGroup> ranks,
               const optim::AdamWSettings& settings = {});

  using NamedOptimizer::update;
  // A collective. The report is that of all gradients, the same on each rank.
  optim::StepReport update(const optim::UpdateOptions& options) override;
  // Throws: a gradient is that of all ranks after backward alone.
  optim::GradientRelease release_gradients(const optim::UpdateOptions& options = {}) override;

 private:
  std::shared_ptr<const ops::RankGroup> ranks_;
};

}  // namespace plimsoll::shard
