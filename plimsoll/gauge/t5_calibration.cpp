#include "plimsoll/gauge/t5_calibration.h"

#include <ATen/core/grad_mode.h>

#include "plimsoll/watch/session.h"

namespace plimsoll::gauge {

models::T5Output T5Calibration::observe(const models::T5Input& input) {
  const at::NoGradGuard no_grad;
  watch::Session session({.every_value = true});
  models::T5Output output;
  if (model_.config.encoder_only) {
    output.encoder_output = model_.encode(input.input_ids, input.attention_mask);
  } else {
    output = model_.forward(input);
  }
  raise_to(amaxes_, session.slots().records());
  return output;
}

}  // namespace plimsoll::gauge
