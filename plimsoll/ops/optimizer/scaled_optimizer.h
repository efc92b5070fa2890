// Report of an optimizer's step, and the interface of an optimizer that takes a loss scale off the gradients itself.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace plimsoll::ops {

struct UpdateOptions {
  double max_norm = std::numeric_limits<double>::infinity();  // of all gradients together, after inv_loss_scale
  double inv_loss_scale = 1;                                  // Inf: the scale is lost, nothing counts as finite
};

struct StepReport {
  bool skipped = false;          // a gradient was not finite: no weight, moment or step count has changed
  double grad_norm = 0;          // global norm after inv_loss_scale, before clipping; not finite if skipped
  double clip_factor = 1;        // min(1, max_norm / (grad_norm + 1e-6)), as torch.nn.utils.clip_grad_norm_
  int64_t non_finite = 0;        // gradient elements
  std::string first_non_finite;  // the first parameter that holds one
};

// Reads the gradients once to check and measure them, and once more to use them; never writes them.
class ScaledOptimizer {
 public:
  virtual ~ScaledOptimizer() = default;
  virtual StepReport update(const UpdateOptions& options) = 0;
  StepReport update() { return update({}); }
};

// The factor of StepReport::clip_factor.
inline double clip_factor(double max_norm, double grad_norm) {
  const double factor = max_norm / (grad_norm + 1e-6);
  return factor < 1 ? factor : 1;
}

}  // namespace plimsoll::ops
