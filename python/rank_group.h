// Process groups of torch.distributed, of any backend, by the names that they are registered under.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "plimsoll/ops/ranks/byte_rank_group.h"
#include "plimsoll/ops/scaling/scaling_step.h"

namespace plimsoll::python {

// size: its ranks. The name is looked up at each call, and one that is not registered is an error then.
std::shared_ptr<const ops::RankGroup> rank_group(std::string_view name, int64_t size);
// Which may be one rank.
std::shared_ptr<const ops::ByteRankGroup> shard_group(std::string_view name, int64_t size);

// One for each group, so that the scopes of one backward pass count as one.
std::shared_ptr<const ops::AmaxReduction> amax_reduction_over(std::string_view name, int64_t size);

}  // namespace plimsoll::python
