#include "plimsoll/bind/layer.h"

#include <c10/util/Exception.h>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/amp/scale_tape.h"
#include "plimsoll/bind/layer_state.h"
#include "plimsoll/bind/rank_group.h"
#include "plimsoll/ops/activation/activation.h"
#include "plimsoll/ops/fused/norm_linear.h"
#include "plimsoll/ops/fused/norm_mlp.h"
#include "plimsoll/ops/linear/linear.h"
#include "plimsoll/ops/norm/norm_op.h"

namespace plimsoll::bind {
namespace {

at::Tensor given(const LayerInputs& inputs, LayerInput which) { return inputs[which].value_or(at::Tensor()); }

ops::LinearParallel linear_parallel(const ParallelCall& call, bool by_rows) {
  if (!call.tp_group) return {};
  return {.group = rank_group(*call.tp_group, call.tp_size),
          .mode = by_rows ? ops::ParallelMode::kRow : ops::ParallelMode::kColumn,
          .sequence = call.sequence};
}

}  // namespace

LayerStates layer_states(at::TensorList state) {
  LayerStates states;
  for (size_t first = 0; first < state.size(); first += kStateTensors) {
    states.push_back(amp::taped(layer_state(state.slice(first, std::min(kStateTensors, state.size() - first)))));
  }
  return states;
}

LayerScaling layer_scaling(const LayerCall& call, const ops::SharedRecipe& recipe, const LayerStates& states) {
  LayerScaling scaling;
  for (const auto& state : states) {
    scaling.push_back({.recipe = recipe,
                       .state = state,
                       .step = amp::replays_layers() ? nullptr : amp::current_step(),
                       .is_first_microbatch = call.is_first_microbatch,
                       .save_input = call.save_input ? ops::SaveInput::kInput : ops::SaveInput::kCodes,
                       .parallel = linear_parallel(call.parallel, call.parallel.by_rows || !scaling.empty())});
  }
  return scaling;
}

ops::NormOutput run_layer(const LayerInputs& inputs, const LayerCall& call, LayerScaling scaling) {
  const size_t products = inputs[kFc2Weight] ? 2 : 1;
  TORCH_CHECK_VALUE(scaling.size() == products, "state: expected ", products * kStateTensors, " tensors for ", products,
                    " products, got those of ", scaling.size());
  TORCH_CHECK_VALUE(call.held.empty() || call.held.size() == products, "held: expected that of ", products,
                    " products, got ", call.held.size());
  const at::Tensor x = given(inputs, kX), weight = given(inputs, kWeight), bias = given(inputs, kBias);
  if (!call.held.empty()) hold(scaling[0], call.held[0], weight);
  if (call.held.size() == 2) hold(scaling[1], call.held[1], given(inputs, kFc2Weight));
  if (!inputs[kNormWeight]) return {.output = ops::linear(x, weight, bias, scaling[0])};
  const ops::NormInput norm{.x = x,
                            .residual = given(inputs, kResidual),
                            .weight = given(inputs, kNormWeight),
                            .bias = given(inputs, kNormBias)};
  const ops::NormOptions options = ops::parse_norm_options(call.normalization, call.zero_centered, call.epsilon);
  if (products == 1) return ops::norm_linear(norm, options, weight, bias, scaling[0]);
  return ops::norm_mlp(norm, options,
                       {.fc1_weight = weight,
                        .fc1_bias = bias,
                        .fc2_weight = given(inputs, kFc2Weight),
                        .fc2_bias = given(inputs, kFc2Bias)},
                       ops::activation_spec(ops::parse_activation(call.activation), call.activation_params),
                       {.fc1 = scaling[0], .fc2 = scaling[1]});
}

}  // namespace plimsoll::bind
