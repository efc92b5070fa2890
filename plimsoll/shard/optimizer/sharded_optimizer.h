// ZeRO-1: AdamW whose states are on one rank each. Every rank has all parameters and the averaged gradients, updates
// its share, and sends it to the others.
//
//   shard::DistributedDataParallel parallel(*model, ranks);
//   shard::ShardedOptimizer optimizer(optim::decay_groups(model->named_parameters(), options), ranks);
//   model->loss(tokens, targets).backward();
//   optimizer.update({.max_norm = 1.0});
//
// With ShardedDataParallel instead a gradient is on the rank alone that has its state (ZeRO-2).
// Source: Rajbhandari et al., ZeRO, 2020.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plimsoll/shard/communicator/communicator.h"
#include "plimsoll/shard/optimizer/parameter_shares.h"
#include "plimsoll/shard/optimizer/sharded_adamw.h"

namespace plimsoll::shard {

class ShardedOptimizer final : public optim::NamedOptimizer {
 public:
  // The same groups on all ranks. Throws as optim::AdamW.
  ShardedOptimizer(const std::vector<optim::NamedGroup>& groups, std::shared_ptr<const Communicator> ranks,
                   const optim::AdamWSettings& settings = {});

  using NamedOptimizer::update;
  // A collective: afterwards all ranks have the same parameters. The report is that of all gradients.
  ops::StepReport update(const ops::UpdateOptions& options) override;
  // The rank that has the state of a parameter of the groups.
  int64_t owner_of(const torch::Tensor& parameter) const { return shares_.owner_of(parameter); }

  // The states of this rank's share, under optim::AdamW's names.
  std::map<std::string, torch::Tensor> state_dict() const override { return mine_->state_dict(); }
  void load_state_dict(const std::map<std::string, torch::Tensor>& state) override { mine_->load_state_dict(state); }

 private:
  ParameterShares shares_;
  std::unique_ptr<ShardedAdamW> mine_;
};

}  // namespace plimsoll::shard
