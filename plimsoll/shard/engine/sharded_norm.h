// The norm of gradients of which each rank holds a part.
#pragma once

#include <memory>
#include <vector>

#include "plimsoll/shard/engine/sharded_unit.h"

namespace plimsoll::shard {

// The norm of all ranks' gradients together, in fp64, the same bits on each rank; p > 0, or infinity: the largest
// magnitude. Entries of a sparse gradient for one place count as their sum. One collective.
double global_norm(const std::vector<at::Tensor>& gradients, const ops::RankGroup& ranks, double p = 2);
// Gradients become at most max_norm in that norm. Returns the norm before. A collective.
double clip_gradients_(const std::vector<at::Tensor>& gradients, const ops::RankGroup& ranks, double max_norm,
                       double p = 2);

// The same of units. The 2-norm of fp32 gradients whose order of sums is fixed has bits that do not depend on the
// number of ranks.
double global_norm(const std::vector<std::shared_ptr<ShardedUnit>>& units, const ShardRanks& ranks, double p = 2);

double clip_gradients_(const std::vector<std::shared_ptr<ShardedUnit>>& units, const ShardRanks& ranks, double max_norm,
                       double p = 2);

}  // namespace plimsoll::shard
