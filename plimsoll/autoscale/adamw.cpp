#include "plimsoll/autoscale/adamw.h"

#include "plimsoll/autoscale/block_update.h"
#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::autoscale {

bool step_adamw(const AdamWStep& step) {
  if (!can_update_blocks(step.parameter)) return false;
  const at::Tensor& weight = data_of(step.parameter);
  if (!is_gradient_of(step.gradient, weight) || !is_state_of(step.moment1, weight) ||
      !is_state_of(step.moment2, weight))
    return false;
  const at::Tensor &gradient = data_of(step.gradient), moment1 = values_of_state(step.moment1),
                   moment2 = values_of_state(step.moment2);
  const float gradient_factor = factor_of(step.gradient) * (step.maximize ? -1.0f : 1.0f);
  update_blocks(step.parameter, [&](int64_t begin, int64_t count, float* values) {
    kernels::adamw({.master = values,
                    .grad = at_element(gradient, begin),
                    .grad_format = ops::format_of(gradient.scalar_type(), "autoscale"),
                    .moment1 = at_element(moment1, begin),
                    .moment2 = at_element(moment2, begin),
                    .count = count,
                    .lr = step.lr,
                    .beta1 = step.beta1,
                    .beta2 = step.beta2,
                    .eps = step.eps,
                    .weight_decay = step.weight_decay,
                    .l2 = step.l2,
                    .step = step.step,
                    .grad_scale = gradient_factor});
  });
  return true;
}

}  // namespace plimsoll::autoscale
