// One step of delayed scaling, as an outermost autocast scope sees it: the amaxes of the forward pass wait here and
// reach the slots when the scope ends normally; those of a backward pass wait in the pass and reach them when it ends.
// Until then they are memory that kernels wrote: the host reads all of them together, once, when they reach the slots.
// A scope or pass left by an exception leaves the slots as they were. A slot used several times counts once, with its
// largest amax.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "plimsoll/ops/scaling/operand_slot.h"
#include "plimsoll/recipe/recipe.h"

namespace plimsoll::ops {

using SharedRecipe = std::shared_ptr<const recipe::Recipe>;
using SharedSlot = std::shared_ptr<OperandSlot>;

// Makes the amaxes of delayed recipes with reduce_amax equal on all ranks.
struct AmaxReduction {
  // Replaces each element by its maximum over the ranks. Called once for a forward pass in which such a recipe
  // recorded an amax, and once for each such backward pass.
  std::function<void(std::span<float>)> all_reduce_max;
  // All slots of the model, on every rank in one order, so that the size of the collective never depends on what ran:
  // one that did not run contributes 0 and rolls with the others. Empty: the slots that ran.
  std::vector<SharedSlot> slots;
};

// A slot whose operand was quantized in this step.
struct UsedSlot {
  SharedSlot slot;
  SharedRecipe recipe;
  std::vector<AmaxSlot> amaxes = {};  // one for each use
};

enum class Pass : uint8_t { kForward, kBackward };

// Collects amaxes and updates their slots together.
class AmaxCollector {
 public:
  // Amaxes of one slot fold by max. A non-finite one counts as a use and never reaches the history. The recipe is a
  // delayed one.
  void record(const SharedSlot& slot, const SharedRecipe& recipe, const AmaxSlot& amax);
  // Updates the slots, all or, where a user's function throws, none, and forgets them. `recipe` is that of reduced slots
  // that did not run here.
  void finish(Pass pass, const SharedRecipe& recipe, const AmaxReduction* reduction);

 private:
  std::vector<UsedSlot> entries_;  // in order of first use
};

class ScalingStep {
 public:
  explicit ScalingStep(SharedRecipe recipe, std::shared_ptr<const AmaxReduction> reduction = nullptr)
      : recipe_(std::move(recipe)), reduction_(std::move(reduction)) {}

  void record_forward(const SharedSlot& slot, const SharedRecipe& recipe, const AmaxSlot& amax);
  // Inside a backward pass only; the slots update once, when the whole pass ends.
  void record_backward(const SharedSlot& slot, const SharedRecipe& recipe, const AmaxSlot& amax) const;
  void end_forward();

  // Whether amaxes under this recipe reach the slots as the largest of all ranks.
  bool reduces(const recipe::Recipe& recipe) const;

 private:
  AmaxCollector forward_;
  SharedRecipe recipe_;
  std::shared_ptr<const AmaxReduction> reduction_;
};

}  // namespace plimsoll::ops
