#include "plimsoll/amp/loss_scale_rule.h"

#include <algorithm>
#include <cmath>

namespace plimsoll::amp {

void LossScale::update(const LossScaleRule& rule, const StepEvidence& seen) {
  const auto now = static_cast<double>(scale);
  const bool may_grow = !seen.found_inf && growth_tracker == rule.growth_interval - 1;
  if (may_grow) overflows = 0;
  if (seen.found_inf) overflows = std::min(overflows + 1, rule.hysteresis);
  double next = now;
  if (seen.found_inf) {
    if (overflows >= rule.hysteresis) next = now * rule.backoff_factor;
  } else if (rule.automatic && seen.histogram) {
    next = automatic_scale(now, {.histogram = *seen.histogram, .grad_norm = seen.grad_norm, .may_grow = may_grow},
                           *rule.automatic);
  } else if (may_grow) {
    next = now * rule.growth_factor;
  }
  growth_tracker = seen.found_inf || may_grow || next < now ? 0 : growth_tracker + 1;
  // Bounds that the scale is outside of already move it no further.
  const auto bounded =
      static_cast<float>(std::clamp(next, std::min(rule.min_scale, now), std::max(rule.max_scale, now)));
  if (std::isfinite(bounded)) scale = bounded;
}

}  // namespace plimsoll::amp
