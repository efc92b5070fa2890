#include "plimsoll/shard/data_parallel/reducer.h"

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

}  // namespace

struct Reducer::Hook : torch::autograd::PostAccumulateGradHook {
  Hook(std::weak_ptr<Reducer> reducer, size_t parameter) : reducer_(std::move(reducer)), parameter_(parameter) {}
  void operator()(const at::Tensor&) override {
    const std::shared_ptr<Reducer> reducer = reducer_.lock();
    if (reducer != nullptr) reducer->ready(parameter_);
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
      owners_(options.owners),
      frozen_(options.frozen),
      gradients_(parameters_.size()) {
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
    if (owners_.empty() || !is_mine(i)) continue;
    before_hooks_.push_back(parameters_[i].register_hook([weak = weak_from_this(), i](const at::Tensor&) {
      if (const std::shared_ptr<Reducer> self = weak.lock()) self->set_aside(i);
    }));
  }
}

void Reducer::detach() {
  auto before = before_hooks_.begin();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_[i], nullptr);
    if (!owners_.empty() && is_mine(i)) parameters_[i].remove_hook(*before++);
  }
  before_hooks_.clear();
}

// In the thread of this backward pass.
void Reducer::ready(size_t index) {
  if (!sync) {
    gradients_[index].added_up = true;
    return;
  }
  const at::NoGradGuard no_grad;
  ensure_pass();
  Gradient& gradient = gradients_[index];
  const bool inside = torch::autograd::get_current_graph_task_id() != pass_;
  gradient.added_up = inside && !gradient.taken;
  if (inside && gradient.taken) {
    // Its average may be there any time.
    at::Tensor grad = std::exchange(parameters_[index].mutable_grad(), {});
    gradient.late = gradient.late.defined() ? gradient.late.add_(grad) : std::move(grad);
  }
  if (inside) return;
  take(index, std::exchange(parameters_[index].mutable_grad(), {}));
  while (next_ < buckets_.size() && buckets_[next_].ready == static_cast<int64_t>(buckets_[next_].members.size())) {
    send();
  }
}

// Before autograd adds to .grad, or (autograd::grad) does not, after all. Of all ranks that have the same average, each
// may average it again: only where one rank has it, it must not.
void Reducer::set_aside(size_t index) {
  if (!has_average(index)) return;
  TORCH_CHECK(sync,
              "ShardedDataParallel: expected no_sync() around all backward() of a step but the last, got one after "
              "gradients had been averaged; clear them first");
  ensure_pass();
  gradients_[index].aside = std::exchange(parameters_[index].mutable_grad(), {});
}

bool Reducer::has_average(size_t index) const {
  const at::Tensor& grad = parameters_[index].grad();
  const auto known = gradients_[index].average.lock();
  return grad.defined() && known.get() == grad.unsafeGetTensorImpl();
}

// A pass that an exception ended leaves everything as it was.
void Reducer::ensure_pass() {
  if (!end_.expired()) return;
  for (const at::Tensor& parameter : frozen_) {
    TORCH_CHECK(
        !parameter.requires_grad(),
        "DistributedDataParallel: expected the parameters to train that trained when it was made, got one more, of "
        "shape ",
        parameter.sizes());
  }
  pass_ = torch::autograd::get_current_graph_task_id();
  for (Gradient& gradient : gradients_) {
    gradient.aside.reset();
    gradient.late.reset();
  }
  adds_ = !owners_.empty();
  begin_round();
  const std::shared_ptr<const void> end = std::make_shared<int>();
  end_ = end;
  torch::autograd::Engine::get_default_engine().queue_callback([self = shared_from_this(), end] { self->finish(); });
}

void Reducer::begin_round() {
  next_ = advanced_ = settled_ = 0;
  for (Bucket& bucket : buckets_) {
    bucket.sum = {};
    if (bucket.compressed) bucket.compressed->abandon();
    bucket.ready = 0;
    bucket.values.reset();
  }
  for (Gradient& gradient : gradients_) {
    gradient.taken = false;
    gradient.held.reset();
  }
}

void Reducer::take(size_t index, at::Tensor grad) {
  TORCH_CHECK(!grad.is_sparse(), "DistributedDataParallel: expected dense gradients, got a sparse one");
  slice_of(index).copy_(grad).div_(averaging_.predivide);
  const Place place = places_[index];
  Bucket& bucket = buckets_[place.bucket];
  bucket.values[bucket.elements + static_cast<int64_t>(place.member)].fill_(1);
  ++bucket.ready;
  gradients_[index].taken = true;
  if (is_mine(index)) gradients_[index].held = std::move(grad);
}

void Reducer::allocate(Bucket& bucket) const {
  if (bucket.values.defined()) return;
  bucket.values = at::zeros({bucket.elements + static_cast<int64_t>(bucket.members.size()) + kMarks}, at::kFloat);
}

void Reducer::send() {
  if (next_ == 0) ++begun_;
  Bucket& bucket = buckets_[next_++];
  allocate(bucket);
  bucket.values.slice(0, -kMarks)[begun_ % kMarks].fill_(1);
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
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Gradient& gradient = gradients_[i];
    at::Tensor& grad = parameters_[i].mutable_grad();
    const bool added_up = std::exchange(gradient.added_up, false);
    if (!grad.defined()) continue;
    if (added_up && !parameters_[i].requires_grad()) {
      grad.reset();  // frozen meanwhile
    } else if (added_up) {
      take(i, std::exchange(grad, {}));
    } else if (!gradient.taken && owners_.empty()) {
      slice_of(i).copy_(grad).div_(averaging_.predivide);  // what all have, should others add to it
    }
  }
  finish_round();
  send_late();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Gradient& gradient = gradients_[i];
    if (gradient.aside.defined()) parameters_[i].mutable_grad() = std::exchange(gradient.aside, {});
    gradient.held.reset();
  }
  end_.reset();
}

// A second round, if a parameter had a gradient in this pass and another one in a pass inside it.
void Reducer::send_late() {
  if (std::ranges::none_of(gradients_, [](const Gradient& gradient) { return gradient.late.defined(); })) return;
  for (const Bucket& bucket : buckets_) {
    TORCH_CHECK(
        !bucket.compressed,
        "DistributedDataParallel: expected, under compression, one gradient of a parameter in a backward pass, got "
        "another one from a pass inside it");
  }
  adds_ = true;
  begin_round();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (gradients_[i].late.defined()) take(i, std::exchange(gradients_[i].late, {}));
  }
  finish_round();
}

void Reducer::finish_round() {
  while (next_ < buckets_.size()) send();
  while (advanced_ < buckets_.size()) advance();
  while (settled_ < buckets_.size()) settle();
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

void Reducer::expect_one_pass(const Bucket& bucket) const {
  TORCH_CHECK(
      bucket.values.slice(0, -kMarks).eq(0).any().item<bool>(),
      "DistributedDataParallel: expected gradients of the same backward pass from each rank, got those of different "
      "ones: an exception ended a pass on some ranks that had sent a part of its gradients; end it on all alike");
}

void Reducer::settle() {
  Bucket& bucket = buckets_[settled_++];
  wait_for_averages(bucket);
  const bool mine = bucket.is_for(ranks_->rank());
  if (mine) expect_one_pass(bucket);
  for (size_t m = 0; m < bucket.members.size(); ++m) {
    const Member& member = bucket.members[m];
    if (!mine) {
      parameters_[member.parameter].mutable_grad().reset();
    } else if (bucket.values[bucket.elements + static_cast<int64_t>(m)].item<float>() > 0) {
      put(member.parameter, slice(bucket, member));
    }
  }
  bucket.values.reset();
}

void Reducer::put(size_t index, const at::Tensor& average) {
  Gradient& gradient = gradients_[index];
  at::Tensor& grad = parameters_[index].mutable_grad();
  at::Tensor before = std::exchange(gradient.aside, {});
  if (!before.defined() && adds_ && has_average(index)) before = grad;
  if (before.defined()) {
    grad = before.add_(average);
  } else if (gradient.held.defined()) {
    grad = std::exchange(gradient.held, {}).copy_(average);
  } else if (grad.defined()) {
    grad.copy_(average);
  } else {
    grad = average.to(parameters_[index].scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  }
  gradient.average = WeakTensor(grad.getIntrusivePtr());
}

at::Tensor Reducer::slice(const Bucket& bucket, const Member& member) const {
  const at::Tensor& parameter = parameters_[member.parameter];
  return bucket.values.narrow(0, member.offset, parameter.numel()).view(parameter.sizes());
}

at::Tensor Reducer::slice_of(size_t index) {
  const Place place = places_[index];
  Bucket& bucket = buckets_[place.bucket];
  allocate(bucket);
  return slice(bucket, bucket.members[place.member]);
}

}  // namespace plimsoll::shard
