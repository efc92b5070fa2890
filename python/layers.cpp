// The layers of plimsoll.pytorch as operators: what nn's modules of the same names do in forward. `state` is one
// product as layer_state.h lists it; the amaxes go to the scope that the thread is in.
#include <torch/library.h>

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

using OptionalTensor = std::optional<at::Tensor>;
using TwoTensors = std::tuple<at::Tensor, at::Tensor>;

at::Tensor tensor_or_none(const OptionalTensor& tensor) { return tensor.value_or(at::Tensor()); }

ops::LinearScaling scaling(at::TensorList state, std::string_view recipe, std::optional<bool> is_first_microbatch) {
  return {.recipe = recipe_of(recipe),
          .state = layer_state(state),
          .step = amp::current_step(),
          .is_first_microbatch = is_first_microbatch};
}

// What was normalised is x itself where nothing is added to it.
TwoTensors output_and_sum(const ops::NormOutput& result, const at::Tensor& x) {
  return {result.output, result.sum.defined() ? result.sum : x};
}

at::Tensor scaled_linear(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                         at::TensorList state, std::string_view recipe, std::optional<bool> is_first_microbatch,
                         bool save_input) {
  ops::LinearScaling how = scaling(state, recipe, is_first_microbatch);
  how.save_input = save_input ? ops::SaveInput::kInput : ops::SaveInput::kCodes;
  return ops::linear(x, weight, tensor_or_none(bias), how);
}

TwoTensors norm_linear(const at::Tensor& x, const OptionalTensor& residual, const at::Tensor& norm_weight,
                       const OptionalTensor& norm_bias, const at::Tensor& weight, const OptionalTensor& bias,
                       at::TensorList state, std::string_view recipe, std::string_view kind, bool zero_centered,
                       double epsilon, std::optional<bool> is_first_microbatch) {
  const ops::NormOutput result = ops::norm_linear(
      {.x = x, .residual = tensor_or_none(residual), .weight = norm_weight, .bias = tensor_or_none(norm_bias)},
      ops::norm_options({kind, zero_centered, epsilon}), weight, tensor_or_none(bias),
      scaling(state, recipe, is_first_microbatch));
  return output_and_sum(result, x);
}

TwoTensors norm_mlp(const at::Tensor& x, const OptionalTensor& residual, const at::Tensor& norm_weight,
                    const OptionalTensor& norm_bias, const at::Tensor& fc1_weight, const OptionalTensor& fc1_bias,
                    const at::Tensor& fc2_weight, const OptionalTensor& fc2_bias, std::string_view activation,
                    at::TensorList fc1_state, at::TensorList fc2_state, std::string_view recipe, std::string_view kind,
                    bool zero_centered, double epsilon, std::optional<bool> is_first_microbatch) {
  const ops::NormOutput result = ops::norm_mlp(
      {.x = x, .residual = tensor_or_none(residual), .weight = norm_weight, .bias = tensor_or_none(norm_bias)},
      ops::norm_options({kind, zero_centered, epsilon}),
      {.fc1_weight = fc1_weight,
       .fc1_bias = tensor_or_none(fc1_bias),
       .fc2_weight = fc2_weight,
       .fc2_bias = tensor_or_none(fc2_bias)},
      ops::parse_activation(activation),
      {.fc1 = scaling(fc1_state, recipe, is_first_microbatch), .fc2 = scaling(fc2_state, recipe, is_first_microbatch)});
  return output_and_sum(result, x);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  // recipe: JSON. save_input: keep x for backward, not its codes, because the op before keeps it too.
  library.def(
      "scaled_linear(Tensor x, Tensor weight, Tensor? bias, Tensor[] state, str recipe, "
      "bool? is_first_microbatch=None, bool save_input=False) -> Tensor",
      &scaled_linear);
  // `sum` is x + residual.
  library.def(
      "norm_linear(Tensor x, Tensor? residual, Tensor norm_weight, Tensor? norm_bias, Tensor weight, Tensor? bias, "
      "Tensor[] state, str recipe, str kind='layernorm', bool zero_centered=False, float epsilon=1e-05, "
      "bool? is_first_microbatch=None) -> (Tensor output, Tensor sum)",
      &norm_linear);
  library.def(
      "norm_mlp(Tensor x, Tensor? residual, Tensor norm_weight, Tensor? norm_bias, Tensor fc1_weight, "
      "Tensor? fc1_bias, Tensor fc2_weight, Tensor? fc2_bias, str activation, Tensor[] fc1_state, Tensor[] fc2_state, "
      "str recipe, str kind='layernorm', bool zero_centered=False, float epsilon=1e-05, "
      "bool? is_first_microbatch=None) -> (Tensor output, Tensor sum)",
      &norm_mlp);
}

}  // namespace plimsoll::python
