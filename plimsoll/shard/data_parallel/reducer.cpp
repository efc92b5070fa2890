#include "plimsoll/shard/data_parallel/reducer.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "plimsoll/ops/torch_internals/accumulation.h"
#include "plimsoll/ops/torch_internals/backward_pass.h"

namespace plimsoll::shard {

Reducer::Reducer(std::shared_ptr<const Communicator> ranks, ReducerOptions options)
    : ranks_(std::move(ranks)), options_(std::move(options)), averaging_(averaging_over(ranks_->size())) {
  TORCH_CHECK_VALUE(at::isFloatingType(options_.reduce_dtype), options_.caller,
                    ": expected a dtype of real numbers, got ", options_.reduce_dtype);
  TORCH_CHECK_VALUE(options_.compression == Compression::kNone || options_.reduce_dtype == at::kFloat, options_.caller,
                    ": expected gradients that are compressed in FP32, got ", options_.reduce_dtype);
}

Reducer::~Reducer() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    unhook(i);
    if (attached_ && is_trained(i)) ops::hook_accumulation(parameters_[i], nullptr);
  }
}

void Reducer::train(std::vector<at::Tensor> parameters, std::vector<int64_t> owners) {
  TORCH_CHECK(end_.expired(), options_.caller, ": expected requires_grad to stay as it is during a backward pass");
  std::unordered_map<const c10::TensorImpl*, size_t> known;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    unhook(i);
    known.emplace(parameters_[i].unsafeGetTensorImpl(), i);
    if (gradients_[i].added_up && !parameters_[i].requires_grad()) parameters_[i].mutable_grad().reset();
  }
  std::vector<Gradient> gradients(parameters.size());
  std::vector<at::Tensor> left(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto found = known.find(parameters[i].unsafeGetTensorImpl());
    if (found == known.end()) continue;
    if (const auto kept = left_out(found->second)) left[i] = kept->values.clone();
    gradients[i] = std::move(gradients_[found->second]);
    gradients[i].added_up = gradients[i].added_up && parameters[i].requires_grad();
  }
  parameters_ = std::move(parameters);
  owners_ = std::move(owners);
  gradients_ = std::move(gradients);
  buckets_ = buckets_of(parameters_, owners_, options_.buckets);
  places_.assign(parameters_.size(), {});
  for (size_t b = 0; b < buckets_.size(); ++b) {
    GradientBucket& bucket = buckets_[b];
    for (size_t m = 0; m < bucket.members.size(); ++m) places_[bucket.members[m].parameter] = {b, m};
    const bool travels = options_.compression != Compression::kNone && ranks_->size() > 1;
    if (travels) bucket.compress(options_.compression, ranks_, averaging_);
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_trained(i)) continue;
    if (left[i].defined()) left_out(i)->values.copy_(left[i]);
    if (has_owners() && is_mine(i)) hook(i);
  }
}

int64_t Reducer::sent_bytes() const {
  int64_t bytes = 0;
  for (const GradientBucket& bucket : buckets_) bytes += bucket.sent_bytes(ranks_->size(), options_.reduce_dtype);
  return bytes;
}

std::optional<CompressedAverage::LeftOut> Reducer::left_out(size_t index) const {
  if (!is_trained(index)) return std::nullopt;
  const GradientBucket& bucket = buckets_[places_[index].bucket];
  return bucket.left_out(bucket.members[places_[index].member], parameters_[index].numel());
}

void Reducer::attach() {
  attached_ = true;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_trained(i)) continue;
    ops::hook_accumulation(parameters_[i], [weak = weak_from_this(), i] {
      if (const std::shared_ptr<Reducer> self = weak.lock()) self->ready(i);
    });
  }
}

void Reducer::hook(size_t index) {
  gradients_[index].hook = parameters_[index].register_hook([weak = weak_from_this(), index](const at::Tensor&) {
    if (const std::shared_ptr<Reducer> self = weak.lock()) self->set_aside(index);
  });
}

void Reducer::unhook(size_t index) {
  const auto hook = std::exchange(gradients_[index].hook, std::nullopt);
  if (hook) parameters_[index].remove_hook(*hook);
}

void Reducer::ready(size_t index) {
  if (!sync) {
    gradients_[index].added_up = true;
    return;
  }
  const at::NoGradGuard no_grad;
  ensure_pass();
  travels_ = true;
  Gradient& gradient = gradients_[index];
  const bool inside = ops::current_backward_pass() != pass_;
  gradient.added_up = inside && !gradient.taken;
  if (inside && gradient.taken) {
    // The average may arrive in .grad any time, so what comes late is kept apart.
    at::Tensor grad = std::exchange(parameters_[index].mutable_grad(), {});
    gradient.late = gradient.late.defined() ? gradient.late.add_(grad) : std::move(grad);
  }
  if (inside) return;
  take(index, std::exchange(parameters_[index].mutable_grad(), {}));
  while (next_ < buckets_.size() && buckets_[next_].is_full()) send();
}

// Before autograd adds to .grad, or (autograd::grad) does not, after all. Of all ranks that have the same average, each
// may average it again: only where one rank has it, it must not.
void Reducer::set_aside(size_t index) {
  if (!has_average(index)) return;
  TORCH_CHECK(sync, options_.caller,
              ": expected no_sync() around all backward() of a step but the last, got one after gradients had been "
              "averaged; clear them first");
  ensure_pass();
  gradients_[index].aside = std::exchange(parameters_[index].mutable_grad(), {});
}

bool Reducer::has_average(size_t index) const {
  const at::Tensor& grad = parameters_[index].grad();
  const auto known = gradients_[index].average.lock();
  return grad.defined() && known.get() == grad.unsafeGetTensorImpl();
}

void Reducer::begin() {
  if (ops::current_backward_pass() != ops::kNoBackwardPass) ensure_pass();
}

void Reducer::expect_trained() const {
  std::vector<at::Tensor> more;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].requires_grad() && !is_trained(i)) more.push_back(parameters_[i]);
  }
  TORCH_CHECK(more.empty(), options_.caller, ": expected ", options_.trains_by,
              " to notice that requires_grad has changed, got ", more.size(),
              " parameters that require gradients and that no rank would average, the first of shape ",
              more.front().sizes());
}

// A pass that an exception ended leaves everything as it was.
void Reducer::ensure_pass() {
  if (!end_.expired()) return;
  begin_pass();
  const std::shared_ptr<const void> end = std::make_shared<int>();
  end_ = end;
  ops::at_end_of_backward_pass([self = shared_from_this(), end] { self->finish(); });
}

void Reducer::begin_pass() {
  expect_trained();
  pass_ = ops::current_backward_pass();
  for (Gradient& gradient : gradients_) {
    gradient.aside.reset();
    gradient.late.reset();
  }
  adds_ = has_owners();
  travels_ = false;
  begin_round();
}

void Reducer::reduce() {
  TORCH_CHECK(end_.expired(), options_.caller, ": expected reduce() outside of a backward pass");
  std::array<int32_t, 1> waiting = {std::ranges::any_of(gradients_, &Gradient::added_up)};
  if (ranks_->size() > 1) ranks_->all_reduce_max(waiting);
  TORCH_CHECK(waiting[0] == 1, options_.caller,
              ": expected gradients that have added up inside no_sync(), got none on any rank; reduce() was called "
              "twice, or there was no backward pass");
  begin_pass();
  travels_ = true;
  finish();
}

void Reducer::begin_round() {
  next_ = advanced_ = settled_ = 0;
  for (GradientBucket& bucket : buckets_) bucket.clear();
  for (Gradient& gradient : gradients_) {
    gradient.taken = false;
    gradient.held.reset();
  }
}

void Reducer::take(size_t index, at::Tensor grad) {
  TORCH_CHECK(grad.defined(), options_.caller,
              ": expected the gradient that backward() has just computed, got none; another hook has taken it, as that "
              "of a second ",
              options_.caller, " around the same module does");
  TORCH_CHECK(!grad.is_sparse(), options_.caller,
              ": expected dense gradients, got a sparse one of a parameter of shape ", parameters_[index].sizes());
  slice_of(index).copy_(grad).div_(averaging_.predivide);
  const Place place = places_[index];
  GradientBucket& bucket = buckets_[place.bucket];
  bucket.values[bucket.elements + static_cast<int64_t>(place.member)].fill_(1);
  ++bucket.ready;
  gradients_[index].taken = true;
  if (is_mine(index)) gradients_[index].held = std::move(grad);
}

void Reducer::send() {
  if (next_ == 0) ++begun_;
  GradientBucket& bucket = buckets_[next_++];
  bucket.allocate(options_.reduce_dtype);
  bucket.marks()[begun_ % GradientBucket::kMarks].fill_(1);
  bucket.start(*ranks_);
  if (next_ - advanced_ > 1) buckets_[advanced_++].advance();
  if (next_ - settled_ > kUnderWay) settle();
}

void Reducer::finish() {
  const at::NoGradGuard no_grad;
  if (travels_) {
    take_what_waits();
    finish_round();
    send_late();
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Gradient& gradient = gradients_[i];
    at::Tensor& grad = parameters_[i].mutable_grad();
    if (gradient.aside.defined() && !grad.defined()) grad = std::move(gradient.aside);
    gradient.aside.reset();
    gradient.held.reset();
  }
  end_.reset();
}

// Gradients that have added up on this rank alone.
void Reducer::take_what_waits() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Gradient& gradient = gradients_[i];
    at::Tensor& grad = parameters_[i].mutable_grad();
    const bool added_up = std::exchange(gradient.added_up, false);
    if (!grad.defined() || !is_trained(i)) continue;
    if (added_up && !parameters_[i].requires_grad()) {
      grad.reset();  // frozen meanwhile
    } else if (added_up) {
      take(i, std::exchange(grad, {}));
    } else if (!gradient.taken && !has_owners()) {
      slice_of(i).copy_(grad).div_(averaging_.predivide);  // what all have, should others add to it
    }
  }
}

// A second round, if a parameter had a gradient in this pass and another one in a pass inside it.
void Reducer::send_late() {
  if (std::ranges::none_of(gradients_, [](const Gradient& gradient) { return gradient.late.defined(); })) return;
  for (const GradientBucket& bucket : buckets_) {
    TORCH_CHECK(!bucket.is_compressed(), options_.caller,
                ": expected, under compression, one gradient of a parameter in a backward pass, got another one from a "
                "pass inside it");
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
  while (advanced_ < buckets_.size()) buckets_[advanced_++].advance();
  while (settled_ < buckets_.size()) settle();
}

void Reducer::expect_one_pass(const GradientBucket& bucket) const {
  TORCH_CHECK(
      bucket.marks().eq(0).any().item<bool>(), options_.caller,
      ": expected gradients of the same backward pass from each rank, got those of different ones: an exception ended "
      "a pass on some ranks that had sent a part of its gradients; end it on all alike");
}

void Reducer::settle() {
  GradientBucket& bucket = buckets_[settled_++];
  bucket.finish(*ranks_, averaging_);
  const bool mine = bucket.is_for(ranks_->rank());
  if (mine) expect_one_pass(bucket);
  for (size_t m = 0; m < bucket.members.size(); ++m) {
    const GradientBucket::Member& member = bucket.members[m];
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

at::Tensor Reducer::slice(const GradientBucket& bucket, const GradientBucket::Member& member) const {
  const at::Tensor& parameter = parameters_[member.parameter];
  return bucket.values.narrow(0, member.offset, parameter.numel()).view(parameter.sizes());
}

at::Tensor Reducer::slice_of(size_t index) {
  const Place place = places_[index];
  GradientBucket& bucket = buckets_[place.bucket];
  bucket.allocate(options_.reduce_dtype);
  return slice(bucket, bucket.members[place.member]);
}

}  // namespace plimsoll::shard
