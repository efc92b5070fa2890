#include "python/layer.h"

#include <c10/util/Exception.h>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/ops/activation.h"
#include "plimsoll/ops/linear.h"
#include "plimsoll/ops/norm_linear.h"
#include "plimsoll/ops/norm_mlp.h"
#include "plimsoll/ops/norm_pass.h"
#include "python/layer_state.h"
#include "python/recipe_text.h"

namespace plimsoll::python {
namespace {

at::Tensor given(const LayerInputs& inputs, LayerInput which) { return inputs[which].value_or(at::Tensor()); }

}  // namespace

LayerStates layer_states(at::TensorList state) {
  LayerStates states;
  for (size_t first = 0; first < state.size(); first += kStateTensors) {
    states.push_back(layer_state(state.slice(first, std::min(kStateTensors, state.size() - first))));
  }
  return states;
}

LayerScaling layer_scaling(const LayerCall& call, const LayerStates& states) {
  LayerScaling scaling;
  for (const auto& state : states) {
    scaling.push_back({.recipe = recipe_of(call.recipe),
                       .state = state,
                       .step = amp::current_step(),
                       .is_first_microbatch = call.is_first_microbatch,
                       .save_input = call.save_input ? ops::SaveInput::kInput : ops::SaveInput::kCodes});
  }
  return scaling;
}

ops::NormOutput run_layer(const LayerInputs& inputs, const LayerCall& call, const LayerScaling& scaling) {
  const size_t products = inputs[kFc2Weight] ? 2 : 1;
  TORCH_CHECK_VALUE(scaling.size() == products, "state: expected ", products * kStateTensors, " tensors for ", products,
                    " products, got those of ", scaling.size());
  const at::Tensor x = given(inputs, kX), weight = given(inputs, kWeight), bias = given(inputs, kBias);
  if (!inputs[kNormWeight]) return {.output = ops::linear(x, weight, bias, scaling[0])};
  const ops::NormInput norm{.x = x,
                            .residual = given(inputs, kResidual),
                            .weight = given(inputs, kNormWeight),
                            .bias = given(inputs, kNormBias)};
  const ops::NormOptions options = ops::norm_options({call.normalization, call.zero_centered, call.epsilon});
  if (products == 1) return ops::norm_linear(norm, options, weight, bias, scaling[0]);
  return ops::norm_mlp(norm, options,
                       {.fc1_weight = weight,
                        .fc1_bias = bias,
                        .fc2_weight = given(inputs, kFc2Weight),
                        .fc2_bias = given(inputs, kFc2Bias)},
                       ops::parse_activation(call.activation), {.fc1 = scaling[0], .fc2 = scaling[1]});
}

}  // namespace plimsoll::python
