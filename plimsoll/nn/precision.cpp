#include "plimsoll/nn/precision.h"

#include <ATen/autocast_mode.h>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/ops/dtype.h"

namespace plimsoll::nn {

std::optional<at::ScalarType> scope_dtype() {
  if (const ops::SharedRecipe recipe = amp::current_recipe()) return ops::dtype_of(recipe->high_precision_format());
  if (at::autocast::is_autocast_enabled(at::kCPU)) return at::autocast::get_autocast_dtype(at::kCPU);
  return std::nullopt;
}

ops::SharedRecipe without_codes(const recipe::Recipe& recipe) {
  return std::make_shared<const recipe::Recipe>(recipe::HighPrecision{.format = recipe.high_precision_format()});
}

}  // namespace plimsoll::nn
