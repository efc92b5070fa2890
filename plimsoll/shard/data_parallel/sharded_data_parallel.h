// ZeRO-2: as DistributedDataParallel, but after backward() a gradient is on the one rank that updates its parameter,
// and has no memory on the others.
//
//   shard::ShardedOptimizer optimizer(groups, ranks);
//   shard::ShardedDataParallel parallel(*model, optimizer, ranks);
//   model->loss(tokens, targets).backward();
//   optimizer.update({.max_norm = 1.0});
//
// Several backward() for one update: all but the last under no_sync(), or each averaged by itself.
#pragma once

#include "plimsoll/shard/data_parallel/data_parallel.h"
#include "plimsoll/shard/optimizer/sharded_optimizer.h"

namespace plimsoll::shard {

class ShardedDataParallel : public DistributedDataParallel {
 public:
  // Throws as DistributedDataParallel, and where the optimizer lacks a parameter that is trained.
  ShardedDataParallel(torch::nn::Module& module, const ShardedOptimizer& optimizer,
                      std::shared_ptr<const Communicator> ranks, const DataParallelOptions& options = {})
      : DistributedDataParallel(module, std::move(ranks), options,
                                [&](const at::Tensor& parameter) { return optimizer.owner_of(parameter); }) {}
};

}  // namespace plimsoll::shard
