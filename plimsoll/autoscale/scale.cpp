#include "plimsoll/autoscale/scale.h"

#include <algorithm>
#include <cmath>

namespace plimsoll::autoscale {
namespace {

int32_t saturated(double exponent) {
  return static_cast<int32_t>(std::clamp(exponent, double{-kLargestExponent}, double{kLargestExponent}));
}

// log2 of the root of the sum of the squares, by the larger one, so that neither is ever squared.
double root_sum_square(double a, double b) {
  const double larger = std::max(a, b), smaller = std::min(a, b);
  return larger + 0.5 * std::log2(1 + std::exp2(2 * (smaller - larger)));
}

// The scale of a sum in which `mask` is a term without a scale of its own.
Scale with_mask(const Scale& scale, const Scale& mask) {
  if (!mask.is_mask() || scale.is_zero()) return scale;
  Scale result = with_exponent(scale, std::max(scale.exponent, 0));
  result.bound = std::max(result.bound, mask.bound) + 1;
  return result;
}

double added(double bound, double more) {
  return bound >= kUnbounded || more >= kUnbounded ? kUnbounded : bound + more;
}

}  // namespace

bool Scale::is_zero() const { return exponent <= -kLargestExponent; }

Scale zero_scale() { return {.exponent = -kLargestExponent, .remainder = 0, .bound = -kUnbounded}; }
Scale mask_scale() { return {.exponent = -kLargestExponent, .remainder = 0, .bound = kMaskData}; }

Scale scale_of_number(double number) {
  const double magnitude = std::fabs(number);
  if (!std::isfinite(magnitude)) return zero_scale();
  return magnitude < kMaskValue ? scale_of(magnitude, magnitude) : mask_scale();
}

Scale scale_of(double rms, double amax) {
  if (!(amax > 0)) return zero_scale();
  const double log_rms = std::log2(rms), log_amax = std::log2(amax);
  const double exponent = std::max(std::round(log_rms), std::ceil(log_amax - kHeadroom));
  return {.exponent = saturated(exponent), .remainder = log_rms - exponent, .bound = log_amax - exponent};
}

Scale with_exponent(const Scale& scale, int32_t exponent) {
  if (scale.is_zero()) return {.exponent = exponent, .remainder = scale.remainder, .bound = scale.bound};
  const double moved = static_cast<double>(scale.exponent) - exponent;
  return {.exponent = exponent, .remainder = scale.remainder + moved, .bound = added(scale.bound, moved)};
}

double shift(const Scale& from, int32_t exponent) {
  return from.is_zero() ? 1 : std::exp2(static_cast<double>(from.exponent) - exponent);
}

int32_t shift_to(const Scale& from, const Scale& to) {
  return from.is_zero() || to.is_zero() ? 0 : from.exponent - to.exponent;
}

Scale settled(const Scale& scale) {
  if (scale.is_zero()) return scale;
  return with_exponent(scale, saturated(std::floor(scale.rms() + 0.5)));
}

Scale settled_if_due(const Scale& scale) { return std::fabs(scale.remainder) < kSlack ? scale : settled(scale); }

Scale product(const Scale& a, const Scale& b) {
  if (a.is_zero() || b.is_zero()) return {.exponent = -kLargestExponent, .bound = added(a.bound, b.bound)};
  return {.exponent = saturated(static_cast<double>(a.exponent) + b.exponent),
          .remainder = a.remainder + b.remainder,
          .bound = added(a.bound, b.bound)};
}

Scale power(const Scale& scale, double degree) {
  if (scale.is_zero()) return degree > 0 ? scale : Scale{.exponent = 0, .bound = kUnbounded};
  return {.exponent = saturated(scale.exponent * degree),
          .remainder = scale.remainder * degree,
          .bound = degree < 0 || scale.bound >= kUnbounded ? kUnbounded : scale.bound * degree};
}

Scale sum(const Scale& a, const Scale& b) {
  if (a.is_zero()) return with_mask(b, a);
  if (b.is_zero()) return with_mask(a, b);
  const int32_t exponent = std::max(a.exponent, b.exponent);
  const double largest = std::max(with_exponent(a, exponent).bound, with_exponent(b, exponent).bound);
  return {.exponent = exponent, .remainder = root_sum_square(a.rms(), b.rms()) - exponent, .bound = added(largest, 1)};
}

Scale sum_over(const Scale& scale, int64_t terms) {
  const double log_terms = std::log2(static_cast<double>(std::max<int64_t>(terms, 1)));
  return {
      .exponent = scale.exponent, .remainder = scale.remainder + log_terms / 2, .bound = added(scale.bound, log_terms)};
}

Scale mean_over(const Scale& scale, int64_t terms) {
  const double log_terms = std::log2(static_cast<double>(std::max<int64_t>(terms, 1)));
  return {.exponent = scale.exponent, .remainder = scale.remainder - log_terms / 2, .bound = scale.bound};
}

}  // namespace plimsoll::autoscale
