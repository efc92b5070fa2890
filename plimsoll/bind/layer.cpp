#include "plimsoll/bind/layer.h"

#include <c10/util/Exception.h>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/amp/scale_tape.h"
#include "plimsoll/bind/layer_state.h"
#include "plimsoll/bind/rank_group.h"
#include "plimsoll/bind/recipe_text.h"
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

// Controller that chooses the formats of the layer; nullptr: its recipe has them.
std::shared_ptr<ops::PrecisionController> controller_of(const LayerCall& call) {
  if (!call.recipe.empty() && !is_auto(call.recipe)) return nullptr;
  std::shared_ptr<ops::PrecisionController> precision = amp::current_scope().precision;
  TORCH_CHECK(precision != nullptr || call.recipe.empty(),
              "recipe auto: expected the scope of the compiled layer to be open, got none");
  if (precision == nullptr) return nullptr;
  TORCH_CHECK_NOT_IMPLEMENTED(!call.parallel.tp_group,
                              "recipe auto: expected layers that are whole on each rank, got a "
                              "tp_size of ",
                              call.parallel.tp_size);
  for (const HeldWeight& held : call.held) {
    TORCH_CHECK_NOT_IMPLEMENTED(!held.codes,
                                "recipe auto: expected weights that are values, got codes "
                                "(quantized_model_init), which no wider format brings back");
  }
  return precision;
}

}  // namespace

LayerScaling layer_scaling(const LayerCall& call, const ops::SharedRecipe& recipe, at::TensorList state) {
  const std::shared_ptr<ops::PrecisionController> precision = controller_of(call);
  LayerScaling scaling;
  for (size_t first = 0; first < state.size(); first += kStateTensors) {
    auto product = layer_state(state.slice(first, std::min(kStateTensors, state.size() - first)));
    const ops::SharedRecipe chosen = precision == nullptr ? recipe : amp::controlled_recipe(*precision, product);
    scaling.push_back({.recipe = chosen,
                       .state = amp::taped(std::move(product)),
                       .step = amp::replays_layers() ? nullptr : amp::current_step(),
                       .precision = precision,
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
