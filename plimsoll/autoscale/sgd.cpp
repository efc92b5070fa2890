#include "plimsoll/autoscale/sgd.h"

#include "plimsoll/autoscale/block_update.h"
#include "plimsoll/kernels/sgd/sgd.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::autoscale {

bool step_sgd(const SgdStep& step) {
  if (!can_update_blocks(step.parameter)) return false;
  const at::Tensor& weight = data_of(step.parameter);
  const bool has_momentum = step.momentum_buffer.defined();
  if (!is_gradient_of(step.gradient, weight) || (has_momentum && !is_state_of(step.momentum_buffer, weight)))
    return false;
  const at::Tensor& gradient = data_of(step.gradient);
  const at::Tensor buffer = has_momentum ? values_of_state(step.momentum_buffer) : at::Tensor();
  const float gradient_factor = factor_of(step.gradient) * (step.maximize ? -1.0f : 1.0f);
  update_blocks(step.parameter, [&](int64_t begin, int64_t count, float* values) {
    kernels::sgd({.weight = values,
                  .grad = at_element(gradient, begin),
                  .grad_format = ops::format_of(gradient.scalar_type(), "autoscale"),
                  .momentum_buffer = reinterpret_cast<float*>(at_element(buffer, begin)),
                  .is_first = step.is_first,
                  .nesterov = step.nesterov,
                  .count = count,
                  .lr = step.lr,
                  .momentum = step.momentum,
                  .dampening = step.dampening,
                  .weight_decay = step.weight_decay,
                  .grad_scale = gradient_factor});
  });
  return true;
}

}  // namespace plimsoll::autoscale
