// The norm of gradients of which each rank holds a part.
#pragma once

#include <memory>
#include <vector>

#include "plimsoll/shard/engine/sharded_unit.h"

namespace plimsoll::shard {

// The norm of all gradients together, in fp64, the same bits on each rank; p > 0, or infinity: the largest magnitude.
// One collective. The 2-norm of fp32 gradients whose order of sums is fixed has bits that do not depend on the
// number of ranks.
double global_norm(const std::vector<std::shared_ptr<ShardedUnit>>& units, const ShardRanks& ranks, double p = 2);

// Gradients become at most max_norm in that norm. Returns the norm before. Collective.
double clip_gradients_(const std::vector<std::shared_ptr<ShardedUnit>>& units, const ShardRanks& ranks, double max_norm,
                       double p = 2);

}  // namespace plimsoll::shard
