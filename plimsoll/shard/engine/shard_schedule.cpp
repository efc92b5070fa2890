#include "plimsoll/shard/engine/shard_schedule.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <span>
#include <utility>

#include "plimsoll/ops/torch_internals/accumulation.h"
#include "plimsoll/ops/torch_internals/backward_pass.h"

namespace plimsoll::shard {
std::shared_ptr<ShardSchedule> ShardSchedule::create(std::vector<std::shared_ptr<ShardedUnit>> units,
                                                     std::vector<std::vector<size_t>> borrowed) {
  std::shared_ptr<ShardSchedule> schedule(new ShardSchedule(std::move(units), std::move(borrowed)));
  for (size_t unit = 0; unit < schedule->units_.size(); ++unit) schedule->attach(unit);
  return schedule;
}

ShardSchedule::ShardSchedule(std::vector<std::shared_ptr<ShardedUnit>> units, std::vector<std::vector<size_t>> borrowed)
    : units_(std::move(units)), borrowed_(std::move(borrowed)), readers_(units_.size()), awaited_(units_.size()) {
  borrowed_.resize(units_.size());
}

void ShardSchedule::attach(size_t unit) {
  for (size_t group = 0; group < units_[unit]->groups().size(); ++group) {
    const NamedTensors& parameters = units_[unit]->groups()[group].parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      ops::hook_accumulation(parameters[i].second, [weak = weak_from_this(), unit, group, i] {
        if (const auto schedule = weak.lock()) schedule->take_gradient(unit, group, i);
      });
    }
  }
}

UnitPhase ShardSchedule::phase(size_t unit) const {
  if (std::ranges::find(open_, unit, &ForwardPass::unit) != open_.end()) return UnitPhase::kForward;
  if (!in_backward_ || !has_begun_[unit]) return UnitPhase::kIdle;
  return awaited_[unit].is_nothing() ? UnitPhase::kAfterBackward : UnitPhase::kBackward;
}

ShardSchedule::~ShardSchedule() {
  for (const auto& unit : units_) {
    for (const ShardedGroup& group : unit->groups()) {
      for (const auto& [name, parameter] : group.parameters()) {
        ops::hook_accumulation(parameter, nullptr);
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

// A unit that a reentrant checkpoint ran without a graph is first seen in the backward pass. Such units stand there in
// the order of the forward pass, behind the outermost unit, whose gradients travel last.
void ShardSchedule::note(size_t unit) {
  if (std::ranges::find(order_, unit) != order_.end()) return;
  const bool follows = in_backward_ && unit != 0 && !order_.empty() && order_.front() == 0;
  order_.insert(in_backward_ ? order_.begin() + (follows ? 1 : 0) : order_.end(), unit);
}

void ShardSchedule::prefetch_forward(size_t unit) {
  if (!units_[unit]->options().prefetch) return;
  const auto found = std::ranges::find(previous_order_, unit);
  if (found != previous_order_.end() && found + 1 != previous_order_.end()) units_[*(found + 1)]->start_gather();
}

// The next unit is the nearest before this one whose backward pass has not begun. Which parameters are still needed is
// not asked: ranks that use other ones would differ, and gather in another order.
void ShardSchedule::prefetch_backward(size_t unit) {
  if (!units_[unit]->options().prefetch) return;
  const auto found = std::ranges::find(order_, unit);
  const auto next =
      std::find_if(std::make_reverse_iterator(found), order_.rend(), [&](size_t other) { return !has_begun_[other]; });
  if (next != order_.rend()) units_[*next]->start_gather(/*keeps_codes=*/true);
}

// The amaxes of all weights that will travel as codes, at once: for each collective this thread waits for all ranks.
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

// Units forget what an exception left behind, and parameters that stayed gathered after a forward pass without a
// backward pass: they may have changed.
void ShardSchedule::begin_step() {
  std::ranges::fill(readers_, 0);
  std::erase_if(recorded_, [](const std::weak_ptr<UnitPass>& pass) { return pass.expired(); });
  for (const auto& unit : units_) {
    unit->take_requires_grad();
    unit->release_unless_kept();
  }
}

// Reentrant checkpoints around the outermost unit run it again in the backward pass that they are in, each with a
// reduction of its own.
void ShardSchedule::expect_one_run_again() {
  const int task = ops::current_backward_pass();
  TORCH_CHECK(
      task == ops::kNoBackwardPass || std::exchange(runs_again_in_, task) != task ||
          units_[0]->options().ordered_passes == 0,
      "FullyShardedDataParallel: expected the outermost module in one reentrant checkpoint of a backward pass where "
      "the order of sums is fixed, got a second one");
}

void ShardSchedule::before_forward(size_t unit) {
  const std::lock_guard lock(mutex_);
  if (in_backward_ && ops::current_backward_pass() == ops::kNoBackwardPass) abandon_backward();
  const bool records = at::GradMode::is_enabled();
  if (records && !in_backward_) note(unit);
  const at::NoGradGuard no_grad;
  if (!in_backward_) {
    if (unit == 0) expect_one_run_again();
    if (unit == 0) open_.clear();
    if (open_.empty()) begin_step();
    if (unit == 0) agree_on_amaxes();
  }
  for (const size_t read : read_by(unit)) {
    units_[read]->gather(in_backward_);
    if (!in_backward_) ++readers_[read];
  }
  if (!in_backward_) prefetch_forward(unit);
  open_.push_back({.unit = unit, .records = records, .nodes = {.begin = at::sequence_number::peek()}});
}

// Passes inside this one may still be open, where an exception ended them.
ForwardPass ShardSchedule::end_forward(size_t unit) {
  while (open_.size() > 1 && open_.back().unit != unit) open_.pop_back();
  TORCH_CHECK(!open_.empty() && open_.back().unit == unit,
              "FullyShardedDataParallel: expected before() of a unit before its after(), got after() of unit ", unit);
  ForwardPass pass = std::move(open_.back());
  open_.pop_back();
  pass.nodes.end = at::sequence_number::peek();
  if (!open_.empty()) open_.back().inner.push_back(pass.nodes);
  return pass;
}

void ShardSchedule::after_forward(size_t unit, at::TensorList outputs) {
  const std::lock_guard lock(mutex_);
  ForwardPass pass = end_forward(unit);
  const bool goes_back = at::GradMode::is_enabled() && std::ranges::any_of(outputs, [](const at::Tensor& output) {
                           return output.defined() && output.requires_grad();
                         });
  if (goes_back) {
    const auto recorded = UnitPass::record(std::move(pass), outputs, [schedule = weak_from_this()](UnitPass& of) {
      if (const auto owner = schedule.lock()) owner->take_exit(of);
    });
    recorded_.push_back(recorded);
    for (const at::Tensor& output : outputs) {
      if (!output.defined() || !output.requires_grad()) continue;
      output.register_hook([schedule = weak_from_this(), recorded](const at::Tensor&) {
        if (const auto owner = schedule.lock()) owner->before_backward(*recorded);
      });
    }
  } else if (!in_backward_ && !open_.empty() && open_.front().records) {
    ++open_.front().unrecorded[unit];
  }
  if (in_backward_) return;
  for (const size_t read : read_by(unit)) {
    const FullyShardedOptions& options = units_[read]->options();
    const bool stays = goes_back && (!options.reshard_after_forward || (read == 0 && options.disable_reshard_on_root));
    if (--readers_[read] == 0 && !stays) units_[read]->release();
  }
}

// Every hook calls this first. A reentrant checkpoint has a backward pass of its own inside that of the model.
void ShardSchedule::enter_task() {
  const int task = ops::current_backward_pass();
  if (!in_backward_) begin_backward();
  if (std::ranges::find(tasks_, task) != tasks_.end()) return;
  const bool is_nested = !tasks_.empty();
  tasks_.push_back(task);
  await_passes(is_nested);
  await_gradients();
  if (!is_nested)
    brings_gradients_ = !ops::is_partial_backward_pass() || std::ranges::any_of(awaited_, &Awaited::gradients);
}

void ShardSchedule::begin_backward() {
  in_backward_ = true;
  next_ = 0;
  tasks_.clear();
  open_before_ = open_.size();
  awaited_.assign(units_.size(), {});
  has_begun_.assign(units_.size(), false);
  came_late_.assign(units_.size(), false);
  for (const auto& pass : recorded_) {
    if (const auto there = pass.lock()) there->forget_exits();
  }
  for (const auto& unit : units_) unit->take_requires_grad();
  ops::at_end_of_backward_pass([self = shared_from_this()] { self->finish_backward(); });
}

void ShardSchedule::await_passes(bool is_nested) {
  for (const auto& weak : recorded_) {
    const auto pass = weak.lock();
    if (pass == nullptr || !pass->await_exits()) continue;
    for (const size_t read : read_by(pass->unit())) {
      ++awaited_[read].passes;
      if (is_nested && awaited_[read].unrecorded > 0) --awaited_[read].unrecorded;
    }
    for (const auto& [unit, count] : pass->unrecorded()) {
      for (const size_t read : read_by(unit)) awaited_[read].unrecorded += count;
    }
  }
}

void ShardSchedule::await_gradients() {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    for (const ShardedGroup& group : units_[unit]->groups()) {
      for (const auto& [name, parameter] : group.parameters()) {
        const auto accumulator = ops::accumulator_of(parameter);
        if (accumulator && ops::is_in_backward_pass(accumulator.get())) ++awaited_[unit].gradients;
      }
    }
  }
}

// An exception ended the pass.
void ShardSchedule::abandon_backward() {
  in_backward_ = false;
  sent_.reset();
  order_.clear();
  open_.clear();
  for (const auto& unit : units_) {
    for (ShardedGroup& group : unit->groups()) group.forget_gradients();
  }
}

void ShardSchedule::before_backward(UnitPass& pass) {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  enter_task();
  note(pass.unit());
  has_begun_[pass.unit()] = true;
  for (const size_t read : read_by(pass.unit())) units_[read]->gather(in_backward_);
  prefetch_backward(pass.unit());
}

void ShardSchedule::take_exit(UnitPass& pass) {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  enter_task();
  if (!pass.take_exit()) return;
  for (const size_t read : read_by(pass.unit())) {
    --awaited_[read].passes;
    settle(read);
  }
}

void ShardSchedule::take_gradient(size_t unit, size_t group, size_t parameter) {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  enter_task();
  ShardedGroup& owner = units_[unit]->groups()[group];
  const auto& [name, whole] = owner.parameters()[parameter];
  if (awaited_[unit].gradients > 0) --awaited_[unit].gradients;
  if (!whole.grad().defined()) return settle(unit);  // frozen since the forward pass
  note(unit);
  if (is_sent(unit)) {
    TORCH_CHECK(units_[unit]->options().ordered_passes == 0, "FullyShardedDataParallel: expected all gradients of ",
                name,
                " before the sum, whose order is fixed; got another one from a module that ran more often in the "
                "backward pass than in the forward pass");
    came_late_[unit] = true;
  }
  owner.add_gradient(parameter, whole.grad());
  whole.mutable_grad().reset();
  settle(unit);
}

void ShardSchedule::settle(size_t unit) {
  if (!awaited_[unit].is_nothing()) return;
  release_after_backward(unit);
  if (sync_ && brings_gradients_) reduce_ready();
}

// Parameters do not change while gradients add up on this rank, so those that stay between forward and backward pass
// stay for the next forward pass, too.
void ShardSchedule::release_after_backward(size_t unit) {
  if (readers_[unit] > 0) return;  // a forward pass asked for gradients
  if (sync_ || units_[unit]->options().reshard_after_forward) {
    units_[unit]->release();
  } else {
    units_[unit]->keep();
  }
}

bool ShardSchedule::is_sent(size_t unit) const {
  const auto unsent = order_.end() - static_cast<std::ptrdiff_t>(next_);
  return std::find(unsent, order_.end(), unit) != order_.end();
}

// Units travel in one order, which ranks that use other parameters of a unit share. The outermost one waits for the
// end.
void ShardSchedule::reduce_ready() {
  while (next_ < order_.size()) {
    const size_t unit = order_[order_.size() - 1 - next_];
    if (unit == 0 || !awaited_[unit].is_nothing()) return;
    ++next_;
    send(unit);
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
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  in_backward_ = false;
  open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(std::min(open_before_, open_.size())), open_.end());
  for (size_t unit = 0; unit < units_.size(); ++unit) release_after_backward(unit);
  if (!brings_gradients_) return;
  if (!sync_) {
    for (const auto& unit : units_) unit->note_unsent_gradients();
    return;
  }
  while (next_ < order_.size()) send(order_[order_.size() - 1 - next_++]);
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    if (came_late_[unit]) send(unit);
  }
  finish_sent();
  previous_order_ = std::exchange(order_, {});
}

}  // namespace plimsoll::shard
