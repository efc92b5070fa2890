// Moves of a loss scale from one step to the next: it backs off where gradients overflowed, grows where they have not
// for a while, and stays between bounds. Values only; each scaler, of C++ and of Python, calls this.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "plimsoll/amp/automatic_scale.h"

namespace plimsoll::amp {

struct LossScaleRule {
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;                              // clean steps until the scale grows
  int64_t hysteresis = 1;                                      // overflows since it last could grow until it backs off
  double min_scale = 0;                                        // backing off stops here,
  double max_scale = std::numeric_limits<double>::infinity();  // and growing here; it never reaches Inf
  std::optional<AutomaticScale> automatic = std::nullopt;      // instead of the growth factor
};

// The gradients of one step, those of all optimizers and ranks.
struct StepEvidence {
  bool found_inf = false;  // an element is not finite
  // With the scale on them; without one the automatic rule grows by the factor.
  std::optional<GradientHistogram> histogram = std::nullopt;
  double grad_norm = 0;  // the largest of all optimizers, without the scale
};

struct LossScale {
  float scale = 65536;
  int64_t growth_tracker = 0;  // clean steps since the scale changed or a step overflowed
  int64_t overflows = 0;       // since growth_interval clean steps were last full, up to the hysteresis

  void update(const LossScaleRule& rule, const StepEvidence& seen);
};

}  // namespace plimsoll::amp
