// What the scopes in force say about everything between the products.
#pragma once

#include <ATen/core/TensorBody.h>

#include <optional>

#include "plimsoll/ops/linear_scaling.h"

namespace plimsoll::nn {

// The high-precision dtype of the Fp8Autocast scope, else torch's autocast dtype; nullopt outside both.
std::optional<at::ScalarType> scope_dtype();

// The recipe with every product in its high-precision format.
ops::SharedRecipe without_codes(const recipe::Recipe& recipe);

}  // namespace plimsoll::nn
