#include "plimsoll/ops/linear/tensor_codes.h"

#include <c10/util/Exception.h>

#include <utility>

namespace plimsoll::ops {
namespace {

using recipe::GemmKind;
using recipe::OperandRecipe;
using recipe::Role;
using recipe::ScaleSource;

}  // namespace

bool has_tensor_codes(const recipe::Recipe& recipe) {
  const OperandRecipe operand = recipe.stored_operand(Role::kWeight, GemmKind::kOutput);
  return operand == recipe.stored_operand(Role::kWeight, GemmKind::kGradInput) &&
         operand.source != ScaleSource::kNone && operand.granularity == recipe::kPerTensor;
}

std::optional<QuantizeOptions> weight_codes(const recipe::Recipe& recipe, LinearState& state, const AmaxSlot& amax) {
  if (!has_tensor_codes(recipe)) return std::nullopt;
  const OperandRecipe operand = recipe.operand(Role::kWeight, GemmKind::kOutput);
  QuantizeOptions options = quantize_options(operand, {});
  if (operand.source == ScaleSource::kCurrent) {
    options.scale = tensor_scale(options, amax);
  } else {
    options.scale = state.slot(Role::kWeight).scale_for(*recipe.delayed(), [&] { return amax; });
  }
  return options;
}

GivenCodes codes_of_weight(const at::Tensor& weight, const recipe::Recipe& recipe, const at::Tensor& delayed_scale) {
  TORCH_CHECK_VALUE(!recipe.has_four_bits(), "quantize_weight: expected a recipe of eight bits or more, got ",
                    recipe.name());
  const OperandRecipe output = recipe.stored_operand(Role::kWeight, GemmKind::kOutput);
  const OperandRecipe grad_input = recipe.stored_operand(Role::kWeight, GemmKind::kGradInput);
  TORCH_CHECK_VALUE(output.source != ScaleSource::kNone,
                    "quantize_weight: expected a recipe under which the product `output` reads codes, got one of ",
                    recipe.name(), " that computes it in high precision");
  ScaleRef scale;
  if (const recipe::DelayedScaling* const delayed = recipe.delayed()) {
    OperandSlot slot(Role::kWeight);
    if (delayed_scale.defined()) slot.scale = delayed_scale;
    scale = slot.scale_for(*delayed, [&] { return find_amax(weight); });
  }
  Quantized made = quantize(weight, quantize_options(output, scale));
  GivenCodes given{.codes = std::move(made.tensor), .amax = std::move(made.amax)};
  if (grad_input.source != ScaleSource::kNone && !(grad_input == output)) {
    given.grad_input = quantize(weight, quantize_options(grad_input, scale)).tensor;
  }
  return given;
}

}  // namespace plimsoll::ops
