// Codes and gradient of a product's weight as plimsoll.pytorch holds them beside its values.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/TensorBody.h>

#include <optional>
#include <string>
#include <vector>

#include "plimsoll/ops/linear/linear_scaling.h"

namespace plimsoll::bind {

using OptionalTensor = std::optional<at::Tensor>;
using OptionalTensors = c10::List<OptionalTensor>;

struct HeldWeight {
  OptionalTensor codes, scale;            // for the product `output`, in the form of the recipe
  OptionalTensor grad_codes, grad_scale;  // for grad_input, where the recipe has others there
  OptionalTensor amax;                    // of the values, to be recorded
  OptionalTensor main_grad;
  std::string recipe;  // JSON; empty: codes of one scale
};

// From what Python hands over: these six of each product, or nothing; and a recipe of each, or none.
std::vector<HeldWeight> held_weights(const OptionalTensors& tensors, const std::vector<std::string>& recipes);

// Gives the call of a layer what is held of its weight.
void hold(ops::LinearScaling& scaling, const HeldWeight& held, const at::Tensor& weight);

}  // namespace plimsoll::bind
