#include "plimsoll/optim/gradient_release.h"

#include <utility>

#include "plimsoll/ops/torch_internals/accumulation.h"

namespace plimsoll::optim {

GradientRelease::GradientRelease(std::vector<Hook> hooks) {
  for (const Hook& hook : hooks) {
    TORCH_CHECK(!ops::has_accumulation_hook(hook.parameter), "gradient release: expected parameters whose gradients ",
                "nothing else waits for, got one of shape ", hook.parameter.sizes(),
                " with a hook on its accumulation");
  }
  for (Hook& hook : hooks) {
    ops::hook_accumulation(hook.parameter, std::move(hook.call));
    parameters_.push_back(std::move(hook.parameter));
  }
}

GradientRelease::~GradientRelease() {
  for (const torch::Tensor& parameter : parameters_) ops::hook_accumulation(parameter, nullptr);
}

}  // namespace plimsoll::optim
