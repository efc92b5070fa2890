#include "plimsoll/ops/scaling/scaling_step.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cmath>
#include <utility>

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
  const int graph_task = torch::autograd::get_current_graph_task_id();
  for (const PassCollector& pass : backward_collectors) {
    if (pass.graph_task == graph_task && pass.reduction == reduction.get()) return pass.collector.lock();
  }
  auto collector = std::make_shared<AmaxCollector>();
  torch::autograd::Engine::get_default_engine().queue_callback(
      [collector, recipe, reduction] { collector->finish(Pass::kBackward, recipe, reduction.get()); });
  backward_collectors.push_back({graph_task, reduction.get(), collector});
  return collector;
}

// A slot is its buffers: two views of one (a pass that runs again) count as one.
bool same_slot(const SharedSlot& a, const SharedSlot& b) { return a->scale.is_same(b->scale); }

bool belongs_to(recipe::Role role, Pass pass) {
  return (role == recipe::Role::kGradOutput) == (pass == Pass::kBackward);
}

}  // namespace

void AmaxCollector::record(const SharedSlot& slot, const SharedRecipe& recipe, float amax) {
  const float finite = std::isfinite(amax) ? amax : 0.0f;
  for (Entry& entry : entries_) {
    if (!same_slot(entry.slot, slot)) continue;
    entry.recipe = recipe;
    entry.amax = std::max(entry.amax, finite);
    return;
  }
  entries_.push_back({slot, recipe, finite});
}

void AmaxCollector::finish(Pass pass, const SharedRecipe& recipe, const AmaxReduction* reduction) {
  std::vector<Entry> entries = std::exchange(entries_, {});
  if (reduction != nullptr) reduce(entries, pass, recipe, *reduction);
  for (Entry& entry : entries) update_slot(*entry.slot, *entry.recipe->delayed(), entry.amax);
}

void AmaxCollector::reduce(std::vector<Entry>& entries, Pass pass, const SharedRecipe& recipe,
                           const AmaxReduction& reduction) {
  if (!reduction.slots.empty() && recipe->delayed() != nullptr) {
    std::vector<Entry> all;
    for (const SharedSlot& slot : reduction.slots) {
      if (!belongs_to(slot->role, pass)) continue;
      const auto ran = std::ranges::find_if(entries, [&](const Entry& entry) { return same_slot(entry.slot, slot); });
      all.push_back(ran != entries.end() ? *ran : Entry{slot, recipe, 0.0f});
    }
    entries = std::move(all);
  }
  std::vector<float> amaxes;
  for (const Entry& entry : entries) {
    if (entry.recipe->delayed()->reduce_amax) amaxes.push_back(entry.amax);
  }
  if (amaxes.empty()) return;
  reduction.all_reduce_max(amaxes);
  auto reduced = amaxes.begin();
  for (Entry& entry : entries) {
    if (entry.recipe->delayed()->reduce_amax) entry.amax = *reduced++;
  }
}

void ScalingStep::record_forward(const SharedSlot& slot, const SharedRecipe& recipe, float amax) {
  forward_.record(slot, recipe, amax);
}

void ScalingStep::record_backward(const SharedSlot& slot, const SharedRecipe& recipe, float amax) const {
  backward_collector(recipe_, reduction_)->record(slot, recipe, amax);
}

bool ScalingStep::reduces(const recipe::Recipe& recipe) const {
  return reduction_ != nullptr && recipe.delayed() != nullptr && recipe.delayed()->reduce_amax;
}

void ScalingStep::end_forward() { forward_.finish(Pass::kForward, recipe_, reduction_.get()); }

}  // namespace plimsoll::ops
