// Dtype of what layers compute.
#pragma once

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::models {

// Dtype that a layer with this parameter gives: of the scope's recipe, else of torch's autocast, else of the parameter.
// Scopes of Python leave it to the parameter, too.
inline at::ScalarType computed_dtype(const at::Tensor& parameter) {
  return ops::dtype_of(amp::recipe_for(parameter)->high_precision_format());
}

}  // namespace plimsoll::models
