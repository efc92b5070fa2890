#include "plimsoll/shard/reducer.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <utility>

namespace plimsoll::shard {
namespace {

constexpr double kFirstBucketMb = 1;  // so that the first sum starts early
constexpr size_t kUnderWay = 2;       // buckets that travel while the next is filled

int64_t elements_of(double megabytes) { return static_cast<int64_t>(megabytes * 1024 * 1024 / sizeof(float)); }

void write_gradient(at::Tensor& parameter, const at::Tensor& average) {
  at::Tensor& grad = parameter.mutable_grad();
  if (grad.defined()) {
    grad.copy_(average);
  } else {
    grad = average.to(parameter.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  }
}

}  // namespace

struct Reducer::Hook : torch::autograd::PostAccumulateGradHook {
  Hook(std::weak_ptr<Reducer> reducer, size_t parameter) : reducer_(std::move(reducer)), parameter_(parameter) {}
  void operator()(const at::Tensor&) override {
    const std::shared_ptr<Reducer> reducer = reducer_.lock();
    if (reducer != nullptr && reducer->sync) reducer->ready(parameter_);
  }

 private:
  std::weak_ptr<Reducer> reducer_;
  size_t parameter_;
};

Reducer::Reducer(std::vector<at::Tensor> parameters, std::shared_ptr<const Communicator> ranks,
                 const ReducerOptions& options)
    : parameters_(std::move(parameters)),
      ranks_(std::move(ranks)),
      averaging_(averaging_over(ranks_->size())),
      owners_(options.owners) {
  // Each owner has a bucket of its own that fills.
  fill_buckets(options.bucket_cap_mb / (owners_.empty() ? 1.0 : static_cast<double>(ranks_->size())));
  for (Bucket& bucket : buckets_) {
    if (options.compression == Compression::kNone || ranks_->size() == 1) break;
    bucket.compressed =
        std::make_unique<CompressedAverage>(options.compression, ranks_, ranks_->rank(), averaging_, bucket.elements);
  }
  places_.resize(parameters_.size());
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (size_t m = 0; m < buckets_[b].members.size(); ++m) places_[buckets_[b].members[m].parameter] = {b, m};
  }
}

void Reducer::fill_buckets(double bucket_cap_mb) {
  std::map<int64_t, size_t> open;  // the bucket of each owner that takes more
  int64_t cap = elements_of(std::min(kFirstBucketMb, bucket_cap_mb));
  for (size_t i = parameters_.size(); i-- > 0;) {
    const int64_t numel = parameters_[i].numel(), owner = owners_.empty() ? kAllRanks : owners_[i];
    const auto found = open.find(owner);
    if (found == open.end() || buckets_[found->second].elements + numel > cap) {
      if (found != open.end()) cap = elements_of(bucket_cap_mb);
      open[owner] = buckets_.size();
      buckets_.emplace_back().owner = owner;
    }
    Bucket& bucket = buckets_[open[owner]];
    bucket.members.push_back({.parameter = i, .offset = bucket.elements});
    bucket.elements += numel;
  }
  // In the order in which they are full.
  std::ranges::stable_sort(buckets_, std::ranges::greater(),
                           [](const Bucket& bucket) { return bucket.members.back().parameter; });
}

int64_t Reducer::sent_bytes() const {
  int64_t bytes = 0;
  for (const Bucket& bucket : buckets_) {
    // FP32, by a ring: the sum, and (to all) what it comes to.
    const int64_t rounds = bucket.owner == kAllRanks ? 2 : 1;
    const int64_t ring =
        rounds * (ranks_->size() - 1) * bucket.elements * static_cast<int64_t>(sizeof(float)) / ranks_->size();
    bytes += bucket.compressed ? bucket.compressed->sent_bytes() : ring;
  }
  return bytes;
}

std::vector<CompressedAverage::LeftOut> Reducer::left_out() const {
  std::vector<CompressedAverage::LeftOut> result;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Bucket& bucket = buckets_[places_[i].bucket];
    if (!bucket.compressed) return {};
    const int64_t offset = bucket.members[places_[i].member].offset;
    result.push_back(bucket.compressed->left_out().of(offset, parameters_[i].numel()));
  }
  return result;
}

void Reducer::attach() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_[i], std::make_unique<Hook>(weak_from_this(), i));
  }
}

void Reducer::detach() {
  for (const at::Tensor& parameter : parameters_) torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
}

// In the thread of this backward pass.
void Reducer::ready(size_t index) {
  const at::NoGradGuard no_grad;
  const int pass = torch::autograd::get_current_graph_task_id();
  if (pass != pass_) start(pass);
  at::Tensor& grad = parameters_[index].mutable_grad();
  TORCH_CHECK(!grad.is_sparse(), "DistributedDataParallel: expected dense gradients, got a sparse one");
  const Place place = places_[index];
  Bucket& bucket = buckets_[place.bucket];
  allocate(bucket);
  slice(bucket, bucket.members[place.member]).copy_(grad).div_(averaging_.predivide);
  bucket.values[bucket.elements + static_cast<int64_t>(place.member)].fill_(1);
  if (bucket.owner != kAllRanks && bucket.owner != ranks_->rank()) grad.reset();
  ++bucket.ready;
  while (next_ < buckets_.size() && buckets_[next_].ready == static_cast<int64_t>(buckets_[next_].members.size())) {
    send();
  }
}

// A pass that an exception ended leaves its buckets as they were.
void Reducer::start(int pass) {
  pass_ = pass;
  next_ = advanced_ = settled_ = 0;
  for (Bucket& bucket : buckets_) {
    bucket.sum = {};
    if (bucket.compressed) bucket.compressed->abandon();
    bucket.ready = 0;
    bucket.values.reset();
  }
  torch::autograd::Engine::get_default_engine().queue_callback([self = shared_from_this()] { self->finish(); });
}

void Reducer::allocate(Bucket& bucket) const {
  if (bucket.values.defined()) return;
  bucket.values = at::zeros({bucket.elements + static_cast<int64_t>(bucket.members.size())}, at::kFloat);
}

void Reducer::send() {
  Bucket& bucket = buckets_[next_++];
  allocate(bucket);
  if (bucket.compressed) {
    const at::Tensor flags = bucket.values.slice(0, bucket.elements).to(at::kByte);
    bucket.compressed->start(bucket.values.narrow(0, 0, bucket.elements), flags);
  } else {
    bucket.sum =
        bucket.owner == kAllRanks ? ranks_->all_reduce_(bucket.values) : ranks_->reduce_(bucket.values, bucket.owner);
  }
  if (next_ - advanced_ > 1) advance();
  if (next_ - settled_ > kUnderWay) settle();
}

void Reducer::advance() {
  Bucket& bucket = buckets_[advanced_++];
  if (bucket.compressed) bucket.compressed->advance();
}

void Reducer::finish() {
  const at::NoGradGuard no_grad;
  while (next_ < buckets_.size()) send();
  while (advanced_ < buckets_.size()) advance();
  while (settled_ < buckets_.size()) settle();
  pass_ = kNoPass;
}

// They take the place of this rank's values.
void Reducer::wait_for_averages(Bucket& bucket) const {
  if (bucket.compressed) {
    const CompressedAverage::Result result = bucket.compressed->finish();
    bucket.values.narrow(0, 0, bucket.elements).copy_(result.values);
    bucket.values.slice(0, bucket.elements).copy_(result.flags);
    return;
  }
  bucket.sum.wait();
  if (bucket.is_for(ranks_->rank()) && averaging_.postdivide != 1) {
    bucket.values.narrow(0, 0, bucket.elements).div_(averaging_.postdivide);
  }
}

void Reducer::settle() {
  Bucket& bucket = buckets_[settled_++];
  wait_for_averages(bucket);
  const bool mine = bucket.is_for(ranks_->rank());
  for (size_t m = 0; m < bucket.members.size(); ++m) {
    const Member& member = bucket.members[m];
    at::Tensor& parameter = parameters_[member.parameter];
    if (!mine) {
      parameter.mutable_grad().reset();
    } else if (bucket.values[bucket.elements + static_cast<int64_t>(m)].item<float>() > 0) {
      write_gradient(parameter, slice(bucket, member));
    }
  }
  bucket.values.reset();
}

at::Tensor Reducer::slice(const Bucket& bucket, const Member& member) const {
  const at::Tensor& parameter = parameters_[member.parameter];
  return bucket.values.narrow(0, member.offset, parameter.numel()).view(parameter.sizes());
}

}  // namespace plimsoll::shard
