#include "plimsoll/ops/linear/linear_scaling.h"

namespace plimsoll::ops {

OperandSlot& LinearState::slot(recipe::Role role) {
  switch (role) {
    case recipe::Role::kInput:
      return input;
    case recipe::Role::kWeight:
      return weight;
    case recipe::Role::kGradOutput:
      break;
  }
  return grad_output;
}

SharedRecipe recipe_for(PrecisionController& precision, const std::shared_ptr<LinearState>& state) {
  LayerSlots slots;
  for (const recipe::Role role : {recipe::Role::kInput, recipe::Role::kWeight, recipe::Role::kGradOutput}) {
    slots[static_cast<size_t>(role)] = SharedSlot(state, &state->slot(role));
  }
  return precision.recipe_for(state->name, slots);
}

SharedRecipe evaluation_recipe_for(PrecisionController& precision, const std::shared_ptr<LinearState>& state) {
  return precision.evaluation_recipe_for(state->name, state->grad_output);
}

}  // namespace plimsoll::ops
