#include "plimsoll/app/gauge/gauge_measurement.h"

#include <ATen/core/grad_mode.h>

#include <limits>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/app/relative_error.h"
#include "plimsoll/recipe/recipe.h"

namespace plimsoll::app {

int64_t GaugeInputs::tokens() const {
  int64_t sum = 0;
  for (const at::Tensor& window : windows) sum += window.numel();
  return sum;
}

GaugeInputs GaugeInputs::spread(int64_t most, int64_t shortest) const {
  int64_t all = 0;
  for (const at::Tensor& window : windows) all += window.numel() < shortest ? 0 : window.numel();
  GaugeInputs result{.windows = {}, .logits = {}, .check = check};
  int64_t seen = 0, taken = 0;
  for (size_t i = 0; i < windows.size(); ++i) {
    if (windows[i].numel() < shortest) continue;
    // The share that is taken never leads the share that has been seen by more than this window.
    const bool fits = taken + windows[i].numel() <= most && taken * all <= seen * most;
    seen += windows[i].numel();
    if (!fits && taken > 0) continue;
    taken += windows[i].numel();
    result.windows.push_back(windows[i]);
    result.logits.push_back(logits[i]);
  }
  return result;
}

at::Tensor fp16_logits(models::LanguageModel& model, const at::Tensor& tokens) {
  const at::NoGradGuard no_grad;
  const amp::Fp8Autocast scope({.recipe = recipe::by_name("fp16")});
  return model.logits(tokens);
}

double fp16_error(models::LanguageModel& model, const GaugeInputs& inputs) {
  RelativeError error;
  for (size_t i = 0; i < inputs.windows.size(); ++i) {
    inputs.check();
    const at::Tensor logits = fp16_logits(model, inputs.windows[i]);
    if (!logits.isfinite().all().item<bool>()) return std::numeric_limits<double>::quiet_NaN();
    error.add(logits, inputs.logits[i]);
  }
  return error.value();
}

}  // namespace plimsoll::app
