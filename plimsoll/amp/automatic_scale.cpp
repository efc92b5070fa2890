#include "plimsoll/amp/automatic_scale.h"

#include <algorithm>
#include <cmath>

#include "plimsoll/format/format.h"

namespace plimsoll::amp {
namespace {

constexpr int kLargestExponent = 126;  // of a scale whose reciprocal is normal in FP32

double power_of_two_below(double x) {
  return std::exp2(std::clamp(std::floor(std::log2(x)), -double{kLargestExponent}, double{kLargestExponent}));
}

}  // namespace

double automatic_scale(double scale, const ScaleEvidence& evidence, const AutomaticScale& options) {
  constexpr double kLargest = format::max_finite(format::Format::kFp16);
  const double room = power_of_two_below(kLargest / (options.headroom * evidence.grad_norm));
  if (scale > room || !evidence.may_grow) return std::min(power_of_two_below(scale), room);
  // Zeros alone may be gradients that were flushed on their way.
  if (evidence.histogram.total() == 0) return std::min(2 * power_of_two_below(scale), room);
  int growth = 0;
  while (growth < kLargestExponent &&
         evidence.histogram.share_below(kSmallestNormalFp16 - growth) > options.flushed_share) {
    ++growth;
  }
  return std::min(std::ldexp(power_of_two_below(scale), growth), room);
}

}  // namespace plimsoll::amp
