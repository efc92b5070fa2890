#include "plimsoll/shard/engine/sharded_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "plimsoll/shard/engine/mapped_tensor.h"
#include "plimsoll/shard/engine/tensor_memory.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::shard {

ShardedGradients::ShardedGradients(std::shared_ptr<const FlatLayout> layout, ShardRanks ranks,
                                   const GroupOptions& options, const at::Tensor& parameter)
    : layout_(std::move(layout)),
      ranks_(std::move(ranks)),
      options_(options),
      sums_(at::TensorOptions(parameter.device())
                .dtype(parameter.scalar_type() == at::kDouble ? at::kDouble : at::kFloat)) {}

void ShardedGradients::add(size_t parameter, const at::Tensor& grad) {
  const at::NoGradGuard no_grad;
  const FlatEntry& entry = layout_->entries()[parameter];
  TORCH_CHECK(!grad.is_sparse(), "FullyShardedDataParallel: expected a dense gradient of ", entry.name,
              ", got a sparse one");
  if (!whole_.defined()) {
    whole_ = at::empty({layout_->padded()}, sums_);
    whole_order_ = {};
    whole_.narrow(0, layout_->numel(), layout_->padded() - layout_->numel()).zero_();
    is_there_.assign(layout_->entries().size(), false);
  }
  whole_order_.take_turn(whole_);
  const at::Tensor place = whole_.narrow(0, entry.begin, entry.end - entry.begin).view(entry.shape);
  is_there_[parameter] ? place.add_(grad) : place.copy_(grad);
  is_there_[parameter] = true;
}

void ShardedGradients::forget() {
  whole_.reset();
  terms_ = {};
}

void ShardedGradients::start_reduce() {
  if (layout_->part() == 0) return;
  const at::NoGradGuard no_grad;
  if (!whole_.defined()) {
    whole_ = at::zeros({layout_->padded()}, sums_);
  } else {
    whole_order_.take_turn(whole_);
    for (size_t i = 0; i < layout_->entries().size(); ++i) {
      const FlatEntry& entry = layout_->entries()[i];
      if (!is_there_[i]) whole_.narrow(0, entry.begin, entry.end - entry.begin).zero_();
    }
  }
  if (options_.averaging.predivide != 1) whole_.div_(options_.averaging.predivide);
  const at::Tensor bytes = whole_.to(travels_in()).view(at::kByte);
  whole_.reset();
  terms_ = is_alone() ? ops::Arriving(bytes) : ranks_.reduce->start_exchange(bytes);
}

void ShardedGradients::finish_reduce(std::vector<at::Tensor>& leaves, const std::vector<bool>& receives) {
  if (layout_->part() == 0) return;
  const at::NoGradGuard no_grad;
  const watch::Span span("reduce gradients");
  const at::Tensor terms = terms_.take().view(travels_in()).view({ranks_.size(), layout_->part()});
  if (options_.ordered_passes > 0) return put(ordered_average(terms, leaves), leaves, receives);
  at::Tensor sum = is_alone() ? terms[0].to(sum_dtype()) : terms.sum({0}, false, sum_dtype());
  if (options_.averaging.postdivide != 1) sum.div_(options_.averaging.postdivide);
  put(sum, leaves, receives);
}

// Somebody who cleared the gradients began a new sum.
at::Tensor ShardedGradients::ordered_average(const at::Tensor& terms, const std::vector<at::Tensor>& leaves) {
  bool goes_on = !left_.empty();
  for (size_t i = 0; i < left_.size(); ++i) {
    if (!left_[i].first.defined()) continue;
    const at::Tensor& now = leaves[i].grad();
    goes_on = goes_on && now.defined() && now.is_same(left_[i].first) && version_of(now) == left_[i].second;
  }
  if (!goes_on) ordered_sum_.reset();
  for (int64_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ordered_sum_.defined()) {
      ordered_sum_.add_(terms[rank]);
    } else {
      ordered_sum_ = terms[rank].to(sum_dtype(), /*non_blocking=*/false, /*copy=*/true);
    }
  }
  return ordered_sum_.div(static_cast<double>(ranks_.size() * options_.ordered_passes));
}

// zero_grad() takes no views.
at::Tensor ShardedGradients::waiting(const at::Tensor& part, int64_t begin, const at::Tensor& leaf) {
  if (!options_.offload_folder) return part.to(leaf.scalar_type()).detach();
  if (!waiting_.defined()) waiting_ = mapped_zeros({layout_->part()}, leaf.scalar_type(), *options_.offload_folder);
  return waiting_.narrow(0, begin, part.numel()).view(part.sizes()).detach().copy_(part);
}

void ShardedGradients::put(const at::Tensor& average, std::vector<at::Tensor>& leaves,
                           const std::vector<bool>& receives) {
  const bool is_whole_sum = options_.ordered_passes > 0;  // that of the passes before, too
  left_.clear();
  int64_t begin = 0;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor part =
        average.narrow(0, std::exchange(begin, begin + leaves[i].numel()), leaves[i].numel()).view(leaves[i].sizes());
    if (!receives[i]) continue;
    at::Tensor& kept = leaves[i].mutable_grad();
    if (!kept.defined()) {
      kept = waiting(part, begin - part.numel(), leaves[i]);
    } else if (is_whole_sum) {
      kept.copy_(part);
    } else {
      kept.add_(part);
    }
    release_pages(kept);
  }
  if (!is_whole_sum) return;  // left_ would keep cleared gradients in memory
  // When all are written: gradients of one memory share a version.
  for (size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor gradient = receives[i] ? leaves[i].grad() : at::Tensor();
    left_.emplace_back(gradient, gradient.defined() ? version_of(gradient) : 0);
  }
}

}  // namespace plimsoll::shard
