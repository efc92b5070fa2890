#include "plimsoll/shard/engine/sharded_group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/shard/engine/mapped_tensor.h"
#include "plimsoll/shard/engine/tensor_memory.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::shard {
namespace {

// Elements of a parameter whose 8-bit states share a scale are one rank's, where parameters begin at a multiple of them.
FlatLayout layout_of(const NamedTensors& parameters, int64_t world_size, bool is_flat) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  for (const auto& [name, parameter] : parameters) shapes.emplace_back(name, parameter.sizes().vec());
  return {shapes, world_size, is_flat ? 1 : kernels::kStateGroup};
}

at::Tensor bytes_of(const at::Tensor& flat) { return flat.view(at::kByte); }

}  // namespace

ShardedGroup::ShardedGroup(NamedTensors parameters, ShardRanks ranks, const GroupOptions& options)
    : parameters_(std::move(parameters)),
      ranks_(std::move(ranks)),
      options_(options),
      layout_(std::make_shared<const FlatLayout>(layout_of(parameters_, ranks_.size(), options_.flatten))),
      shard_(layout_->shard(ranks_.rank)),
      gradients_(layout_, ranks_, options, parameters_.front().second) {
  const at::NoGradGuard no_grad;
  const at::Tensor& first = parameters_.front().second;
  const at::ScalarType dtype = first.scalar_type();
  const bool is_trained = first.requires_grad();
  for (const auto& [name, parameter] : parameters_) {
    TORCH_CHECK(parameter.is_leaf() && parameter.device() == first.device() && parameter.scalar_type() == dtype &&
                    parameter.requires_grad() == is_trained,
                "FullyShardedDataParallel: expected ", name, " to be a leaf on ", first.device(),
                " like the others of its group");
  }
  master_ = zeros_of_part(at::TensorOptions(first.device()).dtype(dtype));
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const FlatRange held = layout_->held(i, ranks_.rank);
    const int64_t begin = held.size() == 0 ? 0 : layout_->entries()[i].begin + held.begin - shard_.begin;
    parts.push_back(master_.narrow(0, begin, held.size()));
    parts.back().copy_(parameters_[i].second.detach().reshape({-1}).narrow(0, held.begin, held.size()));
  }
  if (options_.flatten) parts = {master_.narrow(0, 0, shard_.size())};
  for (const at::Tensor& part : parts) leaves_.push_back(part.detach().set_requires_grad(is_trained));
  is_trained_.assign(leaves_.size(), is_trained);
  has_unsent_.assign(leaves_.size(), false);
  seen_version_ = version_of(master_);

  if (!options_.weights_of.empty()) {
    codes_.emplace(options_.weights_of);
    full_codes_ = at::empty({layout_->padded()}, at::kByte);
    free_memory(full_codes_);
    const at::Tensor unread =
        at::full({}, std::numeric_limits<double>::quiet_NaN(), master_.options().dtype(options_.compute_dtype));
    for (const FlatEntry& entry : layout_->entries()) unread_views_.push_back(unread.expand(entry.shape));
  }
  is_master_ = !codes_ && is_alone() && options_.compute_dtype == dtype;
  full_ = is_master_ ? master_ : at::empty({layout_->padded()}, master_.options().dtype(options_.compute_dtype));
  full_views_ = views_of(full_);
  is_master_ ? show(full_views_) : hide();
  release_pages(master_);
}

at::Tensor ShardedGroup::zeros_of_part(const at::TensorOptions& options) const {
  return options_.offload_folder
             ? mapped_zeros({layout_->part()}, options.dtype().toScalarType(), *options_.offload_folder)
             : at::zeros({layout_->part()}, options);
}

void ShardedGroup::set_leaf(size_t index, const at::Tensor& leaf) {
  TORCH_CHECK(leaf.is_alias_of(master_) && leaf.numel() == leaves_.at(index).numel(),
              "FullyShardedDataParallel: expected a tensor with the memory of the shard");
  leaves_[index] = leaf;
}

std::span<const std::pair<std::string, at::Tensor>> ShardedGroup::parameters_in(size_t leaf) const {
  const std::span<const std::pair<std::string, at::Tensor>> all = parameters_;
  return options_.flatten ? all : all.subspan(leaf, 1);
}

void ShardedGroup::take_requires_grad() {
  for (size_t i = 0; i < leaves_.size(); ++i) {
    const auto changed = [&](const auto& item) { return item.second.requires_grad() != is_trained_[i]; };
    const auto parameters = parameters_in(i);
    if (leaves_[i].requires_grad() == is_trained_[i] && !std::ranges::all_of(parameters, changed)) continue;
    is_trained_[i] = !is_trained_[i];
    leaves_[i].set_requires_grad(is_trained_[i]);
    for (const auto& [name, parameter] : parameters) parameter.set_requires_grad(is_trained_[i]);
  }
}

void ShardedGroup::expect_one_requires_grad() const {
  constexpr size_t kNamed = 3;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    size_t others = 0;
    std::string names;
    for (const auto& [name, parameter] : parameters_in(i)) {
      if (parameter.requires_grad() == is_trained_[i]) continue;
      if (others++ < kNamed) names += (names.empty() ? "" : ", ") + name;
    }
    TORCH_CHECK_VALUE(
        others == 0,
        "FullyShardedDataParallel: expected the parameters of one flat shard to be trained or frozen together, got ",
        others, " of ", parameters_in(i).size(), is_trained_[i] ? " frozen (" : " trained (", names,
        others > kNamed ? ", ...)" : ")",
        "; freeze what has an instance of its own, or wrap with flatten_parameters=False");
  }
}

void ShardedGroup::note_unsent_gradients() {
  for (size_t i = 0; i < leaves_.size(); ++i) has_unsent_[i] = has_unsent_[i] || is_trained_[i];
}

bool ShardedGroup::has_gradients() const {
  return std::ranges::find(is_trained_, true) != is_trained_.end() ||
         std::ranges::find(has_unsent_, true) != has_unsent_.end();
}

void ShardedGroup::finish_reduce() {
  std::vector<bool> receives = has_unsent_;
  for (size_t i = 0; i < leaves_.size(); ++i) receives[i] = receives[i] || is_trained_[i];
  gradients_.finish_reduce(leaves_, receives);
  has_unsent_.assign(leaves_.size(), false);
}

std::vector<io::TensorPiece> ShardedGroup::pieces() const {
  std::vector<io::TensorPiece> result;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const FlatEntry& entry = layout_->entries()[i];
    const FlatRange held = layout_->held(i, ranks_.rank);
    const int64_t begin = held.size() == 0 ? 0 : entry.begin + held.begin - shard_.begin;
    result.push_back({.name = entry.name,
                      .shape = entry.shape,
                      .begin = held.begin,
                      .end = held.end,
                      .values = master_.narrow(0, begin, held.size())});
  }
  return result;
}

at::Tensor ShardedGroup::mine(const at::Tensor& flat) const { return flat.narrow(0, shard_.begin, shard_.size()); }

std::vector<at::Tensor> ShardedGroup::views_of(const at::Tensor& flat) const {
  std::vector<at::Tensor> views;
  for (const FlatEntry& entry : layout_->entries()) {
    views.push_back(flat.narrow(0, entry.begin, entry.end - entry.begin).view(entry.shape));
  }
  return views;
}

void ShardedGroup::show(const std::vector<at::Tensor>& values) {
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].second.set_data(values[i]);
}

void ShardedGroup::hide() {
  if (codes_) {
    free_memory(full_codes_);
    codes_->take_back();
  }
  free_memory(full_);
  for (const auto& [name, parameter] : parameters_) parameter.set_data(at::empty({0}, full_.options()));
}

std::vector<at::Tensor> ShardedGroup::held_parts() const {
  std::vector<at::Tensor> parts;
  for (const io::TensorPiece& piece : pieces()) parts.push_back(piece.values);
  return parts;
}

// Caches of converted weights, and what autograd saved, must see that the parameters have changed.
void ShardedGroup::note_new_masters() {
  if (seen_version_ == version_of(master_)) return;
  seen_version_ = version_of(master_);
  for (const auto& [name, parameter] : parameters_) parameter.unsafeGetTensorImpl()->bump_version();
}

bool ShardedGroup::sends_new_codes() const {
  return codes_ && !gathered_ && !is_arriving_ && ShardedCodes::has_recipe();
}

void ShardedGroup::agree_on_amaxes(std::span<ShardedGroup* const> groups) {
  std::vector<int32_t> bits;
  std::vector<std::pair<ShardedGroup*, size_t>> counts;
  for (ShardedGroup* const group : groups) {
    if (!group->sends_new_codes()) continue;
    const std::vector<int32_t> own = ShardedCodes::amax_bits(group->held_parts());
    counts.emplace_back(group, own.size());
    bits.insert(bits.end(), own.begin(), own.end());
  }
  if (counts.empty()) return;
  if (const ops::RankGroup& ranks = groups.front()->gathering_ranks(); ranks.size() > 1) ranks.all_reduce_max(bits);
  std::span<const int32_t> rest = bits;
  for (const auto& [group, count] : counts) {
    group->codes_->set_amaxes(rest.first(count));
    rest = rest.subspan(count);
  }
}

at::Tensor ShardedGroup::travelling(bool keeps_codes) {
  if (codes_ && !keeps_codes) {
    ShardedGroup* const self = this;
    if (!codes_->has_amaxes()) agree_on_amaxes({&self, 1});
    codes_->choose();
  }
  if (!codes_ || !codes_->chosen()) {
    allocate_memory(full_);
    return bytes_of(master_.to(options_.compute_dtype));
  }
  allocate_memory(full_codes_);
  const at::Tensor mine = at::zeros({layout_->part()}, at::kByte);
  mine.narrow(0, 0, shard_.size()).copy_(codes_->encode(held_parts()));
  return mine;
}

void ShardedGroup::start_gather(bool keeps_codes) {
  if (gathered_ || is_arriving_ || layout_->part() == 0) return;
  const at::NoGradGuard no_grad;
  expect_pages(master_);
  note_new_masters();
  if (is_master_) {
    gathered_ = true;
    return;
  }
  const at::Tensor mine = travelling(keeps_codes);
  full_order_.take_turn(full_);
  const at::Tensor all = codes_ && codes_->chosen() ? full_codes_ : bytes_of(full_);
  is_arriving_ = true;
  arriving_ = is_alone() ? ops::Arriving(all.copy_(mine)) : ranks_.gather->start_gather(mine, all);
}

void ShardedGroup::gather(bool keeps_codes) {
  start_gather(keeps_codes);
  full_order_.take_turn(full_);
  if (!is_arriving_) return;
  const watch::Span span("gather parameters");
  is_arriving_ = false;
  arriving_.take();
  release_pages(master_);
  const bool in_codes = codes_ && codes_->chosen();
  show(in_codes ? unread_views_ : full_views_);
  if (in_codes) codes_->give(full_codes_, *layout_);
  gathered_ = true;
}

void ShardedGroup::release() {
  if (is_arriving_) gather();
  if (gathered_ && !is_master_) hide();
  if (is_master_) release_pages(master_);
  gathered_ = is_kept_ = false;
}

void ShardedGroup::keep() {
  if (codes_) return release();
  if (is_arriving_) gather();
  is_kept_ = gathered_;
}

void ShardedGroup::release_unless_kept() {
  const bool stays = std::exchange(is_kept_, false) && seen_version_ == version_of(master_);
  if ((gathered_ || is_arriving_) && !stays) release();
}

void ShardedGroup::forget_gradients() {
  gradients_.forget();
  has_unsent_.assign(leaves_.size(), false);
}

at::Tensor ShardedGroup::gather_masters() const {
  const at::NoGradGuard no_grad;
  if (is_alone() || layout_->part() == 0) return master_.clone();
  const at::Tensor all = at::empty({layout_->padded()}, master_.options());
  ranks_.gather->start_gather(bytes_of(master_), bytes_of(all)).take();
  return all.narrow(0, 0, layout_->numel());
}

void ShardedGroup::show_masters(const at::Tensor& masters) {
  const at::NoGradGuard no_grad;
  if (masters.defined()) return show(views_of(masters));
  if (gathered_ && codes_ && codes_->chosen()) return show(unread_views_);
  if (gathered_ || is_master_) return show(full_views_);
  hide();
}

void ShardedGroup::write_masters(const at::Tensor& masters) {
  const at::NoGradGuard no_grad;
  master_.narrow(0, 0, shard_.size()).copy_(mine(masters));
}

}  // namespace plimsoll::shard
