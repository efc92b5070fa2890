#include "plimsoll/ops/tensor_codes.h"

namespace plimsoll::ops {
namespace {

using recipe::GemmKind;
using recipe::OperandRecipe;
using recipe::Role;
using recipe::ScaleSource;

}  // namespace

std::optional<QuantizeOptions> weight_codes(const recipe::Recipe& recipe, LinearState& state, float amax) {
  const OperandRecipe operand = recipe.operand(Role::kWeight, GemmKind::kOutput);
  const bool for_all = operand == recipe.operand(Role::kWeight, GemmKind::kGradInput);
  if (!for_all || operand.source == ScaleSource::kNone || operand.granularity != recipe::kPerTensor) {
    return std::nullopt;
  }
  QuantizeOptions options = {.format = operand.format,
                             .granularity = operand.granularity,
                             .scale_format = operand.scale_format,
                             .power_of_two = operand.power_of_two,
                             .rounding = operand.rounding};
  if (operand.source == ScaleSource::kCurrent) {
    options.scale = tensor_scale(options, amax);
  } else {
    float scale = current_scale(state.slot(Role::kWeight));
    const recipe::DelayedScaling& delayed = *recipe.delayed();
    if (scale == recipe::kNoScale) {
      recipe::first_scale(delayed, recipe::format_of(delayed.fp8_format, Role::kWeight), amax, {scale, {}});
    }
    options.scale = scale;
  }
  return options;
}

}  // namespace plimsoll::ops
