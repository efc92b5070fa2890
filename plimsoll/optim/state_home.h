// Memory for an optimizer's states between updates, if not the memory that torch gives.
#pragma once

#include <torch/types.h>

#include <functional>

namespace plimsoll::optim {

struct StateHome {
  // A tensor of zeros there. None: torch::zeros.
  std::function<torch::Tensor(at::IntArrayRef sizes, at::ScalarType dtype)> zeros = {};
  // An update is done with a parameter, its gradient or its states until the next one.
  std::function<void(const torch::Tensor&)> rest = {};
};

}  // namespace plimsoll::optim
