// A loss scale from what gradients are, instead of from the overflows that a scale too large makes.
#pragma once

#include "plimsoll/amp/gradient_histogram.h"

namespace plimsoll::amp {

struct AutomaticScale {
  double flushed_share = 0x1p-10;  // of gradient elements; where more are flushed, the scale grows
  double headroom = 8;             // times that the gradients' norm may grow at once before FP16 can overflow
};

struct ScaleEvidence {
  GradientHistogram histogram;  // of gradients with `scale` on them
  double grad_norm = 0;         // the largest of all optimizers, without `scale`; finite
  bool may_grow = false;
};

// The scale of the next step, a power of two: at once at most what leaves the headroom, for no element is larger than
// the norm; and, where it may grow, as small as keeps the share.
double automatic_scale(double scale, const ScaleEvidence& evidence, const AutomaticScale& options);

}  // namespace plimsoll::amp
