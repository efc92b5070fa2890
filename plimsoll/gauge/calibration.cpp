#include "plimsoll/gauge/calibration.h"

#include <ATen/core/grad_mode.h>

#include "plimsoll/watch/session.h"

namespace plimsoll::gauge {

at::Tensor Calibration::observe(const at::Tensor& tokens) {
  const at::NoGradGuard no_grad;
  watch::Session session({.every_value = true});
  at::Tensor logits = model_.logits(tokens);
  raise_to(amaxes_, session.slots().records());
  return logits;
}

}  // namespace plimsoll::gauge
