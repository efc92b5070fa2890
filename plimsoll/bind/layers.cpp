// The layers of plimsoll.pytorch as operators: what nn's modules of the same names do in forward.
#include <torch/library.h>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/bind/layer.h"
#include "plimsoll/bind/recipe_text.h"
#include "plimsoll/bind/traced_layer.h"
#include "plimsoll/ops/torch_internals/tracing.h"

namespace plimsoll::bind {
namespace {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;
using OptionalName = std::optional<std::string_view>;
using Names = std::optional<std::vector<std::string>>;

ParallelCall parallel_call(OptionalName tp_group, int64_t tp_size, bool sequence, bool by_rows = false) {
  ParallelCall call{.tp_size = tp_size, .sequence = sequence, .by_rows = by_rows};
  if (tp_group) call.tp_group = std::string(*tp_group);
  return call;
}

std::string text_in_force(const recipe::Recipe& recipe) {
  const auto precision = amp::current_scope().precision;
  return precision == nullptr ? recipe::to_json(recipe) : recipe::to_json(precision->recipe());
}

ops::NormOutput layer(const LayerInputs& inputs, const LayerCall& call, at::TensorList state) {
  const ops::SharedRecipe recipe = call.recipe.empty() ? amp::recipe_for(*inputs[kWeight]) : recipe_of(call.recipe);
  // Held codes that nobody has handed over are found where tensors of Python's are dispatched (quantized_tensor.py).
  const bool holds_unseen = call.held.empty() && (ops::is_traced(*inputs[kWeight]) ||
                                                  (inputs[kFc2Weight] && ops::is_traced(*inputs[kFc2Weight])));
  if (ops::is_traced(*inputs[kX]) || holds_unseen) {
    TORCH_CHECK_NOT_IMPLEMENTED(!call.parallel.tp_group, "tp_size: expected 1 under torch.compile, got ",
                                call.parallel.tp_size);
    LayerCall traced = call;
    if (traced.recipe.empty()) traced.recipe = text_in_force(*recipe);  // a graph outlives the scope
    return run_traced_layer(inputs, traced, state);
  }
  return run_layer(inputs, call, layer_scaling(call, recipe, state));
}

at::Tensor scaled_linear(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                         at::TensorList state, const OptionalTensors& held, std::string_view recipe,
                         std::optional<bool> is_first_microbatch, bool save_input, OptionalName tp_group,
                         int64_t tp_size, bool sequence_parallel, std::string_view parallel_mode, Names held_recipes) {
  TORCH_CHECK_VALUE(parallel_mode == "column" || parallel_mode == "row",
                    "linear: expected parallel_mode 'column' or 'row', got '", parallel_mode, "'");
  LayerInputs inputs;
  inputs[kX] = x;
  inputs[kWeight] = weight;
  inputs[kBias] = bias;
  const LayerCall call{.recipe = std::string(recipe),
                       .is_first_microbatch = is_first_microbatch,
                       .save_input = save_input,
                       .held = held_weights(held, held_recipes.value_or(std::vector<std::string>())),
                       .parallel = parallel_call(tp_group, tp_size, sequence_parallel, parallel_mode == "row")};
  return layer(inputs, call, state).output;
}

// Layer that begins with a norm; its product or products follow from `inputs`.
TwoTensors norm_layer(const LayerInputs& inputs, std::string_view activation, at::ArrayRef<double> activation_params,
                      at::TensorList state, const OptionalTensors& held, const Names& held_recipes,
                      std::string_view recipe, std::string_view normalization, bool zero_centered, double epsilon,
                      std::optional<bool> is_first_microbatch, const ParallelCall& parallel) {
  const LayerCall call{.recipe = std::string(recipe),
                       .is_first_microbatch = is_first_microbatch,
                       .normalization = std::string(normalization),
                       .zero_centered = zero_centered,
                       .epsilon = epsilon,
                       .activation = std::string(activation),
                       .activation_params = activation_params.vec(),
                       .held = held_weights(held, held_recipes.value_or(std::vector<std::string>())),
                       .parallel = parallel};
  const ops::NormOutput result = layer(inputs, call, state);
  // The sum that was normalised is x itself where nothing is added to it.
  return {result.output, result.sum.defined() ? result.sum : *inputs[kX]};
}

TwoTensors norm_linear(const at::Tensor& x, const OptionalTensor& residual, const at::Tensor& norm_weight,
                       const OptionalTensor& norm_bias, const at::Tensor& weight, const OptionalTensor& bias,
                       at::TensorList state, const OptionalTensors& held, std::string_view recipe,
                       std::string_view normalization, bool zero_centered, double epsilon,
                       std::optional<bool> is_first_microbatch, OptionalName tp_group, int64_t tp_size,
                       bool sequence_parallel, Names held_recipes) {
  return norm_layer({x, residual, norm_weight, norm_bias, weight, bias}, "gelu", {}, state, held, held_recipes, recipe,
                    normalization, zero_centered, epsilon, is_first_microbatch,
                    parallel_call(tp_group, tp_size, sequence_parallel));
}

TwoTensors norm_mlp(const at::Tensor& x, const OptionalTensor& residual, const at::Tensor& norm_weight,
                    const OptionalTensor& norm_bias, const at::Tensor& fc1_weight, const OptionalTensor& fc1_bias,
                    const at::Tensor& fc2_weight, const OptionalTensor& fc2_bias, std::string_view activation,
                    at::TensorList state, const OptionalTensors& held, std::string_view recipe,
                    std::string_view normalization, bool zero_centered, double epsilon,
                    std::optional<bool> is_first_microbatch, OptionalName tp_group, int64_t tp_size,
                    bool sequence_parallel, at::ArrayRef<double> activation_params, Names held_recipes) {
  return norm_layer({x, residual, norm_weight, norm_bias, fc1_weight, fc1_bias, fc2_weight, fc2_bias}, activation,
                    activation_params, state, held, held_recipes, recipe, normalization, zero_centered, epsilon,
                    is_first_microbatch, parallel_call(tp_group, tp_size, sequence_parallel));
}

// The process group of the ranks that share the layer, by name.
#define PLIMSOLL_PARALLEL_SCHEMA "str? tp_group=None, int tp_size=1, bool sequence_parallel=False"

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  // state: ten tensors for each product (layer_state.h); held: six for each, or none, and held_recipes a recipe for each
  // (held_weight.h); recipe: JSON, or empty; save_input: keep x for backward, not its codes, because the op before keeps
  // it too.
  library.def(
      "scaled_linear(Tensor x, Tensor weight, Tensor? bias, *, Tensor[] state, Tensor?[] held, str recipe, "
      "bool? is_first_microbatch=None, bool save_input=False, " PLIMSOLL_PARALLEL_SCHEMA
      ", str parallel_mode='column', str[]? held_recipes=None) -> Tensor",
      &scaled_linear);
  // `sum` is x + residual.
  library.def(
      "norm_linear(Tensor x, *, Tensor? residual, Tensor norm_weight, Tensor? norm_bias, Tensor weight, Tensor? bias, "
      "Tensor[] state, Tensor?[] held, str recipe, str normalization='layernorm', bool zero_centered=False, "
      "float epsilon=1e-05, bool? is_first_microbatch=None, " PLIMSOLL_PARALLEL_SCHEMA
      ", str[]? held_recipes=None) -> (Tensor output, Tensor sum)",
      &norm_linear);
  library.def(
      "norm_mlp(Tensor x, *, Tensor? residual, Tensor norm_weight, Tensor? norm_bias, Tensor fc1_weight, "
      "Tensor? fc1_bias, Tensor fc2_weight, Tensor? fc2_bias, str activation, Tensor[] state, Tensor?[] held, "
      "str recipe, str normalization='layernorm', bool zero_centered=False, float epsilon=1e-05, "
      "bool? is_first_microbatch=None, " PLIMSOLL_PARALLEL_SCHEMA
      ", float[] activation_params=[], str[]? held_recipes=None) -> (Tensor output, Tensor sum)",
      &norm_mlp);
}

}  // namespace plimsoll::bind
