#include "plimsoll/ops/linear/tensor_codes.h"

namespace plimsoll::ops {
namespace {

using recipe::GemmKind;
using recipe::OperandRecipe;
using recipe::Role;
using recipe::ScaleSource;

}  // namespace

bool has_tensor_codes(const recipe::Recipe& recipe) {
  const OperandRecipe operand = recipe.operand(Role::kWeight, GemmKind::kOutput);
  return operand == recipe.operand(Role::kWeight, GemmKind::kGradInput) && operand.source != ScaleSource::kNone &&
         operand.granularity == recipe::kPerTensor;
}

std::optional<QuantizeOptions> weight_codes(const recipe::Recipe& recipe, LinearState& state, const AmaxSlot& amax) {
  if (!has_tensor_codes(recipe)) return std::nullopt;
  const OperandRecipe operand = recipe.operand(Role::kWeight, GemmKind::kOutput);
  QuantizeOptions options = {.format = operand.format,
                             .granularity = operand.granularity,
                             .scale_format = operand.scale_format,
                             .power_of_two = operand.power_of_two,
                             .rounding = operand.rounding};
  if (operand.source == ScaleSource::kCurrent) {
    options.scale = tensor_scale(options, amax);
  } else {
    options.scale = state.slot(Role::kWeight).scale_for(*recipe.delayed(), [&] { return amax; });
  }
  return options;
}

}  // namespace plimsoll::ops
