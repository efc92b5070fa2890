#include "plimsoll/shard/shard_schedule.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <span>
#include <utility>

namespace plimsoll::shard {
namespace {

using torch::autograd::get_current_graph_task_id;
constexpr int kNoTask = -1;

}  // namespace

struct ShardSchedule::Hook : torch::autograd::PostAccumulateGradHook {
  Hook(std::weak_ptr<ShardSchedule> to, size_t unit_index, size_t group_index, size_t parameter_index)
      : schedule(std::move(to)), unit(unit_index), group(group_index), parameter(parameter_index) {}
  void operator()(const at::Tensor&) override {
    if (const auto owner = schedule.lock()) owner->take_gradient(unit, group, parameter);
  }

  std::weak_ptr<ShardSchedule> schedule;
  size_t unit, group, parameter;
};

std::shared_ptr<ShardSchedule> ShardSchedule::create(std::vector<std::shared_ptr<ShardedUnit>> units,
                                                     std::vector<std::vector<size_t>> borrowed) {
  std::shared_ptr<ShardSchedule> schedule(new ShardSchedule(std::move(units), std::move(borrowed)));
  schedule->attach();
  return schedule;
}

ShardSchedule::ShardSchedule(std::vector<std::shared_ptr<ShardedUnit>> units, std::vector<std::vector<size_t>> borrowed)
    : units_(std::move(units)), borrowed_(std::move(borrowed)), readers_(units_.size()), waiting_for_(units_.size()) {
  borrowed_.resize(units_.size());
}

void ShardSchedule::attach() {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    for (size_t group = 0; group < units_[unit]->groups().size(); ++group) {
      const NamedTensors& parameters = units_[unit]->groups()[group].parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        torch::autograd::impl::set_post_acc_grad_hooks(parameters[i].second,
                                                       std::make_unique<Hook>(weak_from_this(), unit, group, i));
      }
    }
  }
}

ShardSchedule::~ShardSchedule() {
  for (const auto& unit : units_) {
    for (const ShardedGroup& group : unit->groups()) {
      for (const auto& [name, parameter] : group.parameters()) {
        torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
      }
    }
  }
}

void ShardSchedule::set_sync(bool sync) {
  for (const auto& unit : units_) {
    TORCH_CHECK(
        sync || unit->options().ordered_passes == 0,
        "FullyShardedDataParallel: no_sync() sums in an order that depends on the number of ranks, so it is not "
        "there where the order is fixed");
  }
  sync_ = sync;
}

void ShardSchedule::note(size_t unit) {
  if (std::ranges::find(order_, unit) != order_.end()) return;
  order_.insert(in_backward_ ? order_.begin() : order_.end(), unit);
}

void ShardSchedule::prefetch_after(size_t unit, const std::vector<size_t>& order, int64_t step) {
  if (!units_[unit]->options().prefetch) return;
  const auto found = std::ranges::find(order, unit);
  if (found == order.end()) return;
  const int64_t next = (found - order.begin()) + step;
  if (next >= 0 && next < static_cast<int64_t>(order.size()))
    units_[order[static_cast<size_t>(next)]]->start_gather(in_backward_);
}

// Of all weights that will travel as codes at once: for each collective this thread waits until all ranks are there.
void ShardSchedule::agree_on_amaxes() {
  std::vector<ShardedGroup*> groups;
  for (const auto& unit : units_) {
    for (ShardedGroup& group : unit->groups()) {
      if (groups.empty() || &group.gathering_ranks() == &groups.front()->gathering_ranks()) groups.push_back(&group);
    }
  }
  ShardedGroup::agree_on_amaxes(groups);
}

std::vector<size_t> ShardSchedule::read_by(size_t unit) const {
  std::vector<size_t> units = {unit};
  units.insert(units.end(), borrowed_[unit].begin(), borrowed_[unit].end());
  return units;
}

void ShardSchedule::before_forward(size_t unit) {
  if (in_backward_ && get_current_graph_task_id() == kNoTask) abandon_backward();
  if (at::GradMode::is_enabled() && !in_backward_) note(unit);
  const at::NoGradGuard no_grad;
  if (!in_backward_ && unit == 0) {
    std::ranges::fill(readers_, 0);  // an exception may have ended the pass before
    agree_on_amaxes();
  }
  for (const size_t read : read_by(unit)) {
    units_[read]->gather(in_backward_);
    if (!in_backward_) ++readers_[read];
  }
  if (!in_backward_) prefetch_after(unit, previous_order_, 1);
}

void ShardSchedule::after_forward(size_t unit, at::TensorList outputs) {
  bool goes_back = false;
  if (at::GradMode::is_enabled()) {
    for (const at::Tensor& output : outputs) {
      if (!output.defined() || !output.requires_grad()) continue;
      goes_back = true;
      output.register_hook([schedule = weak_from_this(), unit](const at::Tensor&) {
        if (const auto owner = schedule.lock()) owner->before_backward(unit);
      });
    }
  }
  if (in_backward_) return;
  for (const size_t read : read_by(unit)) {
    const FullyShardedOptions& options = units_[read]->options();
    const bool stays = goes_back && (!options.reshard_after_forward || (read == 0 && options.disable_reshard_on_root));
    if (--readers_[read] == 0 && !stays) units_[read]->release();
  }
}

void ShardSchedule::begin_backward() {
  if (in_backward_) return;
  in_backward_ = true;
  next_ = 0;
  for (size_t unit = 0; unit < units_.size(); ++unit) waiting_for_[unit] = units_[unit]->trained_parameters();
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self = shared_from_this()] { self->finish_backward(); });
}

// An exception ended the pass.
void ShardSchedule::abandon_backward() {
  in_backward_ = false;
  sent_.reset();
  order_.clear();
  for (const auto& unit : units_) {
    for (ShardedGroup& group : unit->groups()) group.forget_gradients();
  }
}

void ShardSchedule::before_backward(size_t unit) {
  const at::NoGradGuard no_grad;
  begin_backward();
  note(unit);
  // A borrowed parameter's gradient comes after its last reader, so that its own unit knows when to release it.
  for (const size_t read : read_by(unit)) units_[read]->gather(in_backward_);
  prefetch_after(unit, order_, -1);
}

void ShardSchedule::take_gradient(size_t unit, size_t group, size_t parameter) {
  const at::NoGradGuard no_grad;
  begin_backward();
  note(unit);
  ShardedGroup& owner = units_[unit]->groups()[group];
  at::Tensor& grad = owner.parameters()[parameter].second.mutable_grad();
  owner.add_gradient(parameter, grad);
  grad.reset();
  if (--waiting_for_[unit] > 0) return;
  units_[unit]->release();
  if (sync_) reduce_ready();
}

// In one order, which ranks that use other parameters of a unit share.
void ShardSchedule::reduce_ready() {
  while (next_ < order_.size() && waiting_for_[order_[order_.size() - 1 - next_]] == 0) {
    send(order_[order_.size() - 1 - next_++]);
  }
}

void ShardSchedule::send(size_t unit) {
  finish_sent();
  units_[unit]->start_reduce();
  sent_ = unit;
}

void ShardSchedule::finish_sent() {
  if (const auto unit = std::exchange(sent_, std::nullopt)) units_[*unit]->finish_reduce();
}

void ShardSchedule::finish_backward() {
  const at::NoGradGuard no_grad;
  in_backward_ = false;
  for (const auto& unit : units_) unit->release();
  if (!sync_) return;
  while (next_ < order_.size()) send(order_[order_.size() - 1 - next_++]);
  finish_sent();
  previous_order_ = std::exchange(order_, {});
}

}  // namespace plimsoll::shard
