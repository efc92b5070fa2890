#include "plimsoll/shard/optimizer/sharded_optimizer.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "plimsoll/shard/checkpoint/partition.h"

namespace plimsoll::shard {
namespace {

using torch::Tensor;

constexpr size_t kAlone = 256 << 10;  // bytes from which a parameter travels by itself

}  // namespace

ShardedOptimizer::ShardedOptimizer(const std::vector<optim::NamedGroup>& groups,
                                   std::shared_ptr<const Communicator> ranks, const optim::AdamWSettings& settings)
    : NamedOptimizer(groups), ranks_(std::move(ranks)) {
  std::vector<int64_t> sizes;
  for (const optim::NamedGroup& group : groups) {
    for (const auto& [name, parameter] : group.parameters) {
      parameters_.push_back(parameter);
      sizes.push_back(parameter.numel());
    }
  }
  owners_ = balanced_owners(sizes, ranks_->size());
  std::vector<optim::NamedGroup> mine;
  auto owner = owners_.begin();
  for (const optim::NamedGroup& group : groups) {
    mine.push_back({{}, group.options});
    for (const auto& parameter : group.parameters) {
      if (*owner++ == ranks_->rank()) mine.back().parameters.push_back(parameter);
    }
  }
  mine_ = std::make_unique<ShardedAdamW>(mine, ranks_, settings);
}

ops::StepReport ShardedOptimizer::update(const ops::UpdateOptions& options) {
  for (size_t g = 0; g < param_groups_.size(); ++g)
    mine_->param_groups()[g].set_options(param_groups_[g].options().clone());
  ops::StepReport report = mine_->update(options);
  if (!report.skipped) send_parameters();
  return report;
}

int64_t ShardedOptimizer::owner_of(const Tensor& parameter) const {
  const auto found = std::ranges::find_if(parameters_, [&](const Tensor& other) { return other.is_same(parameter); });
  TORCH_CHECK_VALUE(found != parameters_.end(),
                    "ShardedOptimizer: expected a parameter of its groups, got another of shape ", parameter.sizes());
  return owners_[static_cast<size_t>(found - parameters_.begin())];
}

std::vector<ShardedOptimizer::Parcel> ShardedOptimizer::parcels() const {
  std::vector<Parcel> large;
  std::map<std::pair<int64_t, c10::ScalarType>, Parcel> small;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& parameter = parameters_[i];
    if (parameter.nbytes() >= kAlone) {
      large.push_back({.owner = owners_[i], .parameters = {}, .values = parameter.detach()});
    } else {
      Parcel& parcel = small[{owners_[i], parameter.scalar_type()}];
      parcel.owner = owners_[i];
      parcel.parameters.push_back(parameter.detach().flatten());
    }
  }
  for (auto& [place, parcel] : small) large.push_back(std::move(parcel));
  return large;
}

void ShardedOptimizer::send_parameters() {
  if (ranks_->size() == 1) return;
  const torch::NoGradGuard no_grad;
  std::vector<Parcel> all = parcels();
  std::vector<Pending> sent;
  for (Parcel& parcel : all) {
    if (!parcel.values.defined()) parcel.values = at::cat(parcel.parameters);
    sent.push_back(ranks_->broadcast_(parcel.values, parcel.owner));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    sent[i].wait();
    if (all[i].owner == ranks_->rank()) continue;
    int64_t begin = 0;
    for (Tensor& parameter : all[i].parameters) {
      parameter.copy_(all[i].values.narrow(0, begin, parameter.numel()));
      begin += parameter.numel();
    }
  }
  // Saved tensors and caches of quantized weights must see that the weights have changed.
  for (const Tensor& parameter : parameters_) parameter.unsafeGetTensorImpl()->bump_version();
}

}  // namespace plimsoll::shard
