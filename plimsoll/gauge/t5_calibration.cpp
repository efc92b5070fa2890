#include "plimsoll/gauge/t5_calibration.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>

#include "plimsoll/watch/session.h"

namespace plimsoll::gauge {

nn::T5Output T5Calibration::observe(const nn::T5Input& input) {
  const at::NoGradGuard no_grad;
  watch::Session session;
  nn::T5Output output;
  if (model_.config.encoder_only) {
    output.encoder_output = model_.encode(input.input_ids, input.attention_mask);
  } else {
    output = model_.forward(input);
  }
  for (const watch::Record& record : session.slots().records()) {
    TORCH_CHECK(record.non_finite == 0, "gauge: expected finite values in FP32, got Inf or NaN in '", record.name, "'");
    float& amax = amaxes_[record.name];
    amax = std::max(amax, record.amax);
  }
  return output;
}

}  // namespace plimsoll::gauge
