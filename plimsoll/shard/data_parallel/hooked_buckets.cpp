#include "plimsoll/shard/data_parallel/hooked_buckets.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "plimsoll/shard/data_parallel/gradient_bucket.h"
#include "plimsoll/shard/data_parallel/left_out.h"

namespace plimsoll::shard {
namespace {

using LeftOut = CompressedAverage::LeftOut;

LeftOut nothing_of(int64_t elements) {
  return {.values = at::zeros({elements}, at::kFloat), .sums = at::zeros({elements}, at::kFloat)};
}

}  // namespace

HookedBuckets::HookedBuckets(Compression compression, std::shared_ptr<const Communicator> ranks,
                             std::vector<Parameter> parameters)
    : compression_(compression),
      ranks_(std::move(ranks)),
      averaging_(averaging_over(ranks_->size())),
      parameters_(std::move(parameters)),
      waiting_(parameters_.size()) {}

void HookedBuckets::Bucket::start(const std::vector<at::Tensor>& given, double predivide) {
  gradients = given;
  const at::Tensor flat = at::zeros({elements}, at::kFloat);
  for (size_t i = 0; i < gradients.size(); ++i) {
    flat.narrow(0, begins[i], gradients[i].numel()).copy_(gradients[i].reshape({-1}));
  }
  average->start(flat.div_(predivide), at::empty({0}, at::kByte));
}

void HookedBuckets::Bucket::finish() {
  const at::Tensor averages = average->finish().values;
  for (size_t i = 0; i < gradients.size(); ++i) {
    gradients[i].copy_(averages.narrow(0, begins[i], gradients[i].numel()).view_as(gradients[i]));
  }
  gradients.clear();
}

HookedBuckets::Bucket HookedBuckets::make_bucket(const Given& given) {
  Bucket bucket{.parameters = given.parameters};
  for (const size_t parameter : given.parameters) {
    const int64_t elements = parameters_[parameter].elements;
    bucket.begins.push_back(bucket.elements);
    bucket.elements += (elements + kCompressedBlock - 1) / kCompressedBlock * kCompressedBlock;
  }
  bucket.average =
      std::make_unique<CompressedAverage>(compression_, ranks_, ranks_->rank(), averaging_, bucket.elements);
  const LeftOut all = bucket.average->left_out();
  for (size_t i = 0; i < given.parameters.size(); ++i) {
    const auto left = std::exchange(waiting_[given.parameters[i]], std::nullopt);
    if (!left) continue;
    const LeftOut mine = all.of(bucket.begins[i], parameters_[given.parameters[i]].elements);
    mine.values.copy_(left->values);
    mine.sums.copy_(left->sums.narrow(0, mine.begin, mine.sums.numel()));
  }
  return bucket;
}

void HookedBuckets::check(const Given& given) const {
  TORCH_CHECK_VALUE(given.gradients.size() == given.parameters.size(), "compression: expected a gradient for each of ",
                    given.parameters.size(), " parameters, got ", given.gradients.size());
  for (size_t i = 0; i < given.parameters.size(); ++i) {
    const size_t parameter = given.parameters[i];
    TORCH_CHECK_VALUE(parameter < parameters_.size() && given.gradients[i].numel() == parameters_[parameter].elements,
                      "compression: expected the gradients of a bucket's parameters, got one of shape ",
                      given.gradients[i].sizes());
  }
}

void HookedBuckets::advance() { buckets_.at(under_way_[advanced_++]).average->advance(); }

int64_t HookedBuckets::finish() {
  const int64_t index = under_way_.front();
  buckets_.at(index).finish();
  under_way_.pop_front();
  --advanced_;
  return index;
}

std::vector<int64_t> HookedBuckets::start(const Given& given) {
  const at::NoGradGuard no_grad;
  check(given);
  std::vector<int64_t> done;
  const auto finish_all = [&] {
    while (advanced_ < under_way_.size()) advance();
    while (!under_way_.empty()) done.push_back(finish());
  };
  if (given.index == 0) {  // an exception may have ended the pass before
    for (auto& [index, bucket] : buckets_) bucket.average->abandon();
    under_way_.clear();
    advanced_ = 0;
  }
  auto known = buckets_.find(given.index);
  if (known != buckets_.end() && known->second.parameters != given.parameters) {
    finish_all();
    const std::vector<LeftOut> left = left_out();
    waiting_.assign(left.begin(), left.end());
    buckets_.clear();
    known = buckets_.end();
  }
  if (known == buckets_.end()) known = buckets_.emplace(given.index, make_bucket(given)).first;
  known->second.start(given.gradients, averaging_.predivide);
  under_way_.push_back(given.index);
  while (under_way_.size() - advanced_ > 1) advance();
  while (under_way_.size() > kUnderWay) done.push_back(finish());
  if (given.is_last) finish_all();
  return done;
}

int64_t HookedBuckets::sent_bytes() const {
  int64_t bytes = 0;
  for (const auto& [index, bucket] : buckets_) bytes += bucket.average->sent_bytes();
  return bytes;
}

std::vector<LeftOut> HookedBuckets::left_out() const {
  std::vector<LeftOut> left;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    left.push_back(waiting_[i] ? *waiting_[i] : nothing_of(parameters_[i].elements));
  }
  for (const auto& [index, bucket] : buckets_) {
    const at::Tensor values = bucket.average->left_out().values, sums = bucket.average->sums_left_out();
    for (size_t i = 0; i < bucket.parameters.size(); ++i) {
      const int64_t elements = parameters_[bucket.parameters[i]].elements;
      left[bucket.parameters[i]] = {.values = values.narrow(0, bucket.begins[i], elements).clone(),
                                    .sums = sums.narrow(0, bucket.begins[i], elements).clone()};
    }
  }
  return left;
}

void HookedBuckets::restore(const io::CheckpointReader& checkpoint, const std::string& section) {
  buckets_.clear();
  under_way_.clear();
  advanced_ = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    waiting_[i] = nothing_of(parameters_[i].elements);
    restore_left_out(*waiting_[i], *ranks_, parameters_[i].name, checkpoint, section);
  }
}

}  // namespace plimsoll::shard
