#include "plimsoll/shard/optimizer/sharded_optimizer.h"

#include <utility>

namespace plimsoll::shard {

ShardedOptimizer::ShardedOptimizer(const std::vector<optim::NamedGroup>& groups,
                                   std::shared_ptr<const Communicator> ranks, const optim::AdamWSettings& settings)
    : NamedOptimizer(groups), shares_(ranks) {
  std::vector<torch::Tensor> parameters;
  for (const optim::NamedGroup& group : groups) {
    for (const auto& [name, parameter] : group.parameters) parameters.push_back(parameter);
  }
  const std::vector<int64_t> owners = shares_.add(parameters);
  std::vector<optim::NamedGroup> mine;
  optim::AdamWSettings settings_of_mine = settings;
  auto owner = owners.begin();
  for (const optim::NamedGroup& group : groups) {
    mine.push_back({{}, group.options});
    for (const auto& parameter : group.parameters) {
      if (*owner++ != ranks->rank()) continue;
      mine.back().parameters.push_back(parameter);
      settings_of_mine.places.push_back({.number = static_cast<uint64_t>(owner - owners.begin() - 1)});
    }
  }
  mine_ = std::make_unique<ShardedAdamW>(mine, std::move(ranks), settings_of_mine);
}

ops::StepReport ShardedOptimizer::update(const ops::UpdateOptions& options) {
  for (size_t g = 0; g < param_groups_.size(); ++g)
    mine_->param_groups()[g].set_options(param_groups_[g].options().clone());
  ops::StepReport report = mine_->update(options);
  if (!report.skipped) shares_.send({});
  return report;
}

}  // namespace plimsoll::shard
