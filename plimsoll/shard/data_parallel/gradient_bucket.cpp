#include "plimsoll/shard/data_parallel/gradient_bucket.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <map>

namespace plimsoll::shard {

void GradientBucket::compress(Compression compression, const std::shared_ptr<const Communicator>& ranks,
                              const Averaging& averaging) {
  if (owner == kAllRanks) {
    compressed = std::make_unique<CompressedAverage>(compression, ranks, ranks->rank(), averaging, elements);
  } else {
    compressed_for_owner = std::make_unique<CompressedReduction>(compression, ranks, owner, averaging, elements);
  }
}

void GradientBucket::allocate(at::ScalarType dtype) {
  if (values.defined()) return;
  values = at::zeros({elements + static_cast<int64_t>(members.size()) + kMarks}, dtype);
}

void GradientBucket::clear() {
  sum = {};
  if (compressed) compressed->abandon();
  if (compressed_for_owner) compressed_for_owner->abandon();
  ready = 0;
  values.reset();
}

void GradientBucket::start(const Communicator& ranks) {
  if (compressed) {
    compressed->start(gradients(), flags().to(at::kByte));
  } else if (compressed_for_owner) {
    compressed_for_owner->start(gradients(), flags().to(at::kByte));
  } else {
    sum = owner == kAllRanks ? ranks.all_reduce_(values) : ranks.reduce_(values, owner);
  }
}

void GradientBucket::advance() {
  if (compressed) compressed->advance();
}

void GradientBucket::finish(const Communicator& ranks, const Averaging& averaging) {
  const bool is_mine = is_for(ranks.rank());
  if (compressed) {
    const CompressedAverage::Result result = compressed->finish();
    gradients().copy_(result.values);
    flags().copy_(result.flags);
  } else if (compressed_for_owner) {
    const CompressedReduction::Result result = compressed_for_owner->finish();
    if (!is_mine) return;
    gradients().copy_(result.values);
    flags().copy_(result.flags);
  } else {
    sum.wait();
    if (is_mine && averaging.postdivide != 1) gradients().div_(averaging.postdivide);
  }
}

int64_t GradientBucket::sent_bytes(int64_t world_size, at::ScalarType dtype) const {
  if (compressed) return compressed->sent_bytes();
  if (compressed_for_owner) return compressed_for_owner->sent_bytes();
  // By a ring: the sum, and (to all) what it comes to.
  const int64_t rounds = owner == kAllRanks ? 2 : 1;
  return rounds * (world_size - 1) * elements * static_cast<int64_t>(c10::elementSize(dtype)) / world_size;
}

std::optional<CompressedAverage::LeftOut> GradientBucket::left_out(const Member& member, int64_t numel) const {
  if (compressed) return compressed->left_out().of(member.offset, numel);
  if (!compressed_for_owner) return std::nullopt;
  return CompressedAverage::LeftOut{.values = compressed_for_owner->left_out().narrow(0, member.offset, numel),
                                    .sums = at::empty({0}, at::kFloat)};
}

std::vector<GradientBucket> buckets_of(const std::vector<at::Tensor>& parameters, const std::vector<int64_t>& owners,
                                       const BucketSizes& sizes) {
  std::vector<GradientBucket> buckets;
  std::map<int64_t, size_t> open;  // the bucket of each owner that takes more
  int64_t cap = sizes.first;
  for (size_t i = parameters.size(); i-- > 0;) {
    if (!parameters[i].requires_grad()) continue;
    const int64_t numel = parameters[i].numel(), owner = owners.empty() ? GradientBucket::kAllRanks : owners[i];
    const auto found = open.find(owner);
    if (found == open.end() || buckets[found->second].elements + numel > cap) {
      if (found != open.end()) cap = sizes.elements;
      open[owner] = buckets.size();
      buckets.emplace_back().owner = owner;
    }
    GradientBucket& bucket = buckets[open[owner]];
    bucket.members.push_back({.parameter = i, .offset = bucket.elements});
    bucket.elements += numel;
  }
  std::ranges::stable_sort(buckets, std::ranges::greater(),
                           [](const GradientBucket& bucket) { return bucket.members.back().parameter; });
  return buckets;
}

}  // namespace plimsoll::shard
