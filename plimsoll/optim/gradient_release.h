// Hooks that hand a parameter over when its gradient is complete in backward, for as long as this lives.
#pragma once

#include <torch/types.h>

#include <functional>
#include <vector>

namespace plimsoll::optim {

class GradientRelease {
 public:
  struct Hook {
    torch::Tensor parameter;
    std::function<void()> call;
  };
  // Throws c10::Error where a parameter has a hook already; then none is set.
  explicit GradientRelease(std::vector<Hook> hooks);
  ~GradientRelease();
  GradientRelease(const GradientRelease&) = delete;
  GradientRelease& operator=(const GradientRelease&) = delete;

 private:
  std::vector<torch::Tensor> parameters_;
};

}  // namespace plimsoll::optim
