// amp::GradScaler for gradients of which each rank has a part: where one rank alone finds Inf or NaN, all skip, and the
// scales of all have the same bits. unscale_() and step() are collectives, one all_gather each.
#pragma once

#include <memory>
#include <utility>

#include "plimsoll/amp/grad_scaler.h"

namespace plimsoll::shard {

class ShardedGradScaler : public amp::GradScaler {
 public:
  explicit ShardedGradScaler(std::shared_ptr<const ops::RankGroup> ranks, amp::GradScalerOptions options = {})
      : GradScaler(over(std::move(ranks), std::move(options))) {}

 private:
  static amp::GradScalerOptions over(std::shared_ptr<const ops::RankGroup> ranks, amp::GradScalerOptions options) {
    options.ranks = std::move(ranks);
    return options;
  }
};

}  // namespace plimsoll::shard
