#include "plimsoll/ops/scaling/scaling_step.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "plimsoll/ops/torch_internals/backward_pass.h"

namespace plimsoll::ops {
namespace {

// The collectors of the backward passes under way on this thread: more than one only where a backward pass runs
// another. Each belongs to its pass (its final callback holds it), so one that fails takes its amaxes along.
struct PassCollector {
  int graph_task;
  const AmaxReduction* reduction;
  std::weak_ptr<AmaxCollector> collector;
};
thread_local std::vector<PassCollector> backward_collectors;

std::shared_ptr<AmaxCollector> backward_collector(const SharedRecipe& recipe,
                                                  const std::shared_ptr<const AmaxReduction>& reduction) {
  std::erase_if(backward_collectors, [](const PassCollector& pass) { return pass.collector.expired(); });
  const int graph_task = current_backward_pass();
  for (const PassCollector& pass : backward_collectors) {
    if (pass.graph_task == graph_task && pass.reduction == reduction.get()) return pass.collector.lock();
  }
  auto collector = std::make_shared<AmaxCollector>();
  at_end_of_backward_pass(
      [collector, recipe, reduction] { collector->finish(Pass::kBackward, recipe, reduction.get()); });
  backward_collectors.push_back({graph_task, reduction.get(), collector});
  return collector;
}

// A slot is its buffers: two views of one (a pass that runs again) count as one.
bool same_slot(const SharedSlot& a, const SharedSlot& b) { return a->scale.is_same(b->scale); }

bool belongs_to(recipe::Role role, Pass pass) {
  return (role == recipe::Role::kGradOutput) == (pass == Pass::kBackward);
}

// All slots that the reduction names, in its order, each with the amaxes that it got here.
std::vector<UsedSlot> in_order_of(const AmaxReduction& reduction, const std::vector<UsedSlot>& entries, Pass pass,
                                  const SharedRecipe& recipe) {
  std::vector<UsedSlot> all;
  for (const SharedSlot& slot : reduction.slots) {
    if (!belongs_to(slot->role, pass)) continue;
    const auto ran = std::ranges::find_if(entries, [&](const UsedSlot& entry) { return same_slot(entry.slot, slot); });
    all.push_back(ran != entries.end() ? *ran : UsedSlot{slot, recipe});
  }
  return all;
}

// The scale of each slot, and the largest finite one of its amaxes, in one read.
std::vector<OperandSlot::Reading> read_on_host(const std::vector<UsedSlot>& entries) {
  std::vector<at::Tensor> memory;
  for (const UsedSlot& entry : entries) {
    memory.push_back(entry.slot->scale_memory());
    for (const AmaxSlot& amax : entry.amaxes) memory.push_back(amax.memory());
  }
  const std::vector<float> values = ops::read_on_host(memory);
  std::vector<OperandSlot::Reading> readings;
  auto next = values.begin();
  for (const UsedSlot& entry : entries) {
    OperandSlot::Reading reading{.scale = *next++, .amax = 0};
    for (size_t i = 0; i < entry.amaxes.size(); ++i, ++next) {
      if (std::isfinite(*next)) reading.amax = std::max(reading.amax, *next);
    }
    readings.push_back(reading);
  }
  return readings;
}

// Makes the amaxes that the recipes want reduced equal on all ranks.
void reduce(const AmaxReduction& reduction, const std::vector<UsedSlot>& entries,
            std::vector<OperandSlot::Reading>& readings) {
  const auto each_reduced = [&](auto visit) {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].recipe->delayed()->reduce_amax) visit(readings[i].amax);
    }
  };
  std::vector<float> amaxes;
  each_reduced([&](float amax) { amaxes.push_back(amax); });
  if (amaxes.empty()) return;
  reduction.all_reduce_max(amaxes);
  auto reduced = amaxes.begin();
  each_reduced([&](float& amax) { amax = *reduced++; });
}

}  // namespace

void AmaxCollector::record(const SharedSlot& slot, const SharedRecipe& recipe, const AmaxSlot& amax) {
  for (UsedSlot& entry : entries_) {
    if (!same_slot(entry.slot, slot)) continue;
    entry.recipe = recipe;
    entry.amaxes.push_back(amax);
    return;
  }
  entries_.push_back({slot, recipe, {amax}});
}

void AmaxCollector::finish(Pass pass, const SharedRecipe& recipe, const AmaxReduction* reduction) {
  std::vector<UsedSlot> entries = std::exchange(entries_, {});
  if (reduction != nullptr && !reduction->slots.empty() && recipe->delayed() != nullptr) {
    entries = in_order_of(*reduction, entries, pass, recipe);
  }
  std::vector<OperandSlot::Reading> readings = read_on_host(entries);
  if (reduction != nullptr) reduce(*reduction, entries, readings);
  std::vector<OperandSlot::Update> updates;
  for (size_t i = 0; i < entries.size(); ++i) {
    updates.push_back(entries[i].slot->update_of(*entries[i].recipe->delayed(), readings[i]));
  }
  for (size_t i = 0; i < entries.size(); ++i) entries[i].slot->take(updates[i]);
}

void ScalingStep::record_forward(const SharedSlot& slot, const SharedRecipe& recipe, const AmaxSlot& amax) {
  forward_.record(slot, recipe, amax);
}

void ScalingStep::record_backward(const SharedSlot& slot, const SharedRecipe& recipe, const AmaxSlot& amax) const {
  backward_collector(recipe_, reduction_)->record(slot, recipe, amax);
}

bool ScalingStep::reduces(const recipe::Recipe& recipe) const {
  return reduction_ != nullptr && recipe.delayed() != nullptr && recipe.delayed()->reduce_amax;
}

void ScalingStep::end_forward() { forward_.finish(Pass::kForward, recipe_, reduction_.get()); }

}  // namespace plimsoll::ops
