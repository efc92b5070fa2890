// Process groups of torch.distributed, by the names that they are registered under, as operators and classes take them.
#pragma once

#include <torch/custom_class.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "plimsoll/ops/scaling/scaling_step.h"
#include "plimsoll/shard/communicator/communicator.h"

namespace plimsoll::bind {

// size: its ranks, two or more. A name that is not registered is an error.
std::shared_ptr<const ops::RankGroup> rank_group(std::string_view name, int64_t size);

// One for each group, so that the scopes of one backward pass count as one.
std::shared_ptr<const ops::AmaxReduction> amax_reduction_over(std::string_view name, int64_t size);

// torch.classes.plimsoll.Ranks: what plimsoll.shard hands to its engines.
struct Ranks : torch::CustomClassHolder {
  // No name: this process alone.
  explicit Ranks(const std::string& name);
  explicit Ranks(std::shared_ptr<const shard::Communicator> given) : communicator(std::move(given)) {}

  std::shared_ptr<const shard::Communicator> communicator;
};

using RanksPointer = c10::intrusive_ptr<Ranks>;

}  // namespace plimsoll::bind
