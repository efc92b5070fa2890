// Precision of everything between the products, by the scopes in force.
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>
#include <optional>

#include "plimsoll/ops/linear/linear_scaling.h"

namespace plimsoll::nn {

// The high-precision dtype of the Fp8Autocast scope, else that of torch's autocast for the device; nullopt outside both.
std::optional<at::ScalarType> scope_dtype(c10::DeviceType device);

// amp::linear_scaling with every product in the recipe's high-precision format.
ops::LinearScaling high_precision_scaling(const std::shared_ptr<ops::LinearState>& state, const at::Tensor& weight,
                                          std::optional<bool> is_first_microbatch);

}  // namespace plimsoll::nn
