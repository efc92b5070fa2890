#include "plimsoll/shard/optimizer/parameter_shares.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <utility>

#include "plimsoll/shard/checkpoint/partition.h"

namespace plimsoll::shard {
namespace {

using at::Tensor;

constexpr size_t kAlone = 256 << 10;  // bytes from which a parameter travels by itself

at::ScalarType dtype_on_the_way(const Tensor& parameter, const ParameterShares::SendOptions& options) {
  const at::ScalarType dtype = parameter.scalar_type();
  return options.in_half && dtype == at::kFloat ? at::kHalf : dtype;
}

}  // namespace

ParameterShares::ParameterShares(std::shared_ptr<const Communicator> ranks)
    : ranks_(std::move(ranks)), loads_(static_cast<size_t>(ranks_->size()), 0) {}

std::vector<int64_t> ParameterShares::add(const std::vector<Tensor>& parameters) {
  std::vector<int64_t> sizes;
  for (const Tensor& parameter : parameters) sizes.push_back(parameter.requires_grad() ? parameter.numel() : 1);
  const std::vector<int64_t> owners = balanced_owners(sizes, loads_);
  parameters_.insert(parameters_.end(), parameters.begin(), parameters.end());
  owners_.insert(owners_.end(), owners.begin(), owners.end());
  return owners;
}

int64_t ParameterShares::owner_of(const Tensor& parameter) const {
  const auto found = std::ranges::find_if(parameters_, [&](const Tensor& other) { return other.is_same(parameter); });
  TORCH_CHECK_VALUE(found != parameters_.end(),
                    "ShardedOptimizer: expected a parameter of its groups, got another of shape ", parameter.sizes());
  return owners_[static_cast<size_t>(found - parameters_.begin())];
}

std::vector<ParameterShares::Parcel> ParameterShares::parcels(const SendOptions& options) const {
  std::vector<Parcel> large;
  std::map<std::pair<int64_t, at::ScalarType>, Parcel> small;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor parameter = parameters_[i].detach();
    if (parameter.nbytes() >= kAlone) {
      large.push_back({.owner = owners_[i], .parameters = {parameter}, .values = {}});
    } else {
      Parcel& parcel = small[{owners_[i], parameter.scalar_type()}];
      parcel.owner = owners_[i];
      parcel.parameters.push_back(parameter);
    }
  }
  for (auto& [place, parcel] : small) large.push_back(std::move(parcel));
  for (Parcel& parcel : large) {
    const Tensor& first = parcel.parameters.front();
    const at::ScalarType dtype = dtype_on_the_way(first, options);
    parcel.is_in_place = parcel.parameters.size() == 1 && dtype == first.scalar_type() && first.is_contiguous();
    if (parcel.is_in_place) {
      parcel.values = first;
      continue;
    }
    int64_t elements = 0;
    for (const Tensor& parameter : parcel.parameters) elements += parameter.numel();
    parcel.values = at::empty({elements}, first.options().dtype(dtype));
    int64_t begin = 0;
    for (const Tensor& parameter : parcel.parameters) {
      parcel.values.narrow(0, begin, parameter.numel()).view(parameter.sizes()).copy_(parameter);
      begin += parameter.numel();
    }
  }
  return large;
}

void ParameterShares::send(const SendOptions& options) const {
  if (ranks_->size() == 1) return;
  const at::NoGradGuard no_grad;
  const std::vector<Parcel> all = parcels(options);
  std::vector<Pending> sent;
  for (const Parcel& parcel : all) sent.push_back(ranks_->broadcast_(parcel.values, parcel.owner));
  for (size_t i = 0; i < all.size(); ++i) {
    sent[i].wait();
    const Tensor& values = all[i].values;
    const bool is_exact = values.scalar_type() == all[i].parameters.front().scalar_type();
    if (all[i].is_in_place || (all[i].owner == ranks_->rank() && is_exact)) continue;
    int64_t begin = 0;
    for (Tensor parameter : all[i].parameters) {
      parameter.copy_(values.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
      begin += parameter.numel();
    }
  }
  // Saved tensors and caches of quantized weights must see that the weights have changed.
  for (const Tensor& parameter : parameters_) parameter.unsafeGetTensorImpl()->bump_version();
}

}  // namespace plimsoll::shard
