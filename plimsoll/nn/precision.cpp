#include "plimsoll/nn/precision.h"

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::nn {

std::optional<at::ScalarType> scope_dtype(c10::DeviceType device) {
  if (const ops::SharedRecipe recipe = amp::current_recipe()) return ops::dtype_of(recipe->high_precision_format());
  return amp::torch_autocast_dtype(device);
}

ops::LinearScaling high_precision_scaling(const std::shared_ptr<ops::LinearState>& state, const at::Tensor& weight,
                                          std::optional<bool> is_first_microbatch) {
  ops::LinearScaling scaling = amp::linear_scaling(state, weight, is_first_microbatch);
  scaling.recipe = amp::without_codes(scaling.recipe, state->name, "the model defines this layer in high precision");
  scaling.precision = nullptr;
  return scaling;
}

}  // namespace plimsoll::nn
