// Options of a group: how its parameters share one flat array, and the ranks among which that is split.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "plimsoll/ops/ranks/byte_rank_group.h"
#include "plimsoll/shard/average/averaging.h"
#include "plimsoll/shard/engine/sharded_codes.h"

namespace plimsoll::shard {

// The ranks that share parameters. `reduce` has an order of collectives of its own, or is `gather` again.
struct ShardRanks {
  std::shared_ptr<const ops::ByteRankGroup> gather, reduce;
  int64_t rank = 0;
  int64_t size() const { return gather->size(); }
};

struct GroupOptions {
  at::ScalarType compute_dtype = at::kFloat;  // that parameters are gathered in
  at::ScalarType reduce_dtype = at::kFloat;   // that gradients travel in; sums are made in fp32
  Averaging averaging = {};
  bool flatten = true;  // one parameter for the optimizer; else one for each of the model
  // Backward passes in a step, whose gradients are summed over ranks and passes in one order: that of pass, then rank.
  // The average over both then has the same bits however `passes * ranks` is made up. 0: the order is free, and the
  // sum over passes is no average.
  int64_t ordered_passes = 0;
  // States of the layers whose weights the parameters are, or none: they travel as codes where the recipe allows.
  ShardedCodes::States weights_of = {};
  // Folder in which this rank's masters and gradients wait (mapped_tensor.h). None: they stay in memory.
  std::optional<std::filesystem::path> offload_folder = {};
};

}  // namespace plimsoll::shard
