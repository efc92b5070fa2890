#include "plimsoll/autoscale/policy.h"

#include <algorithm>
#include <cmath>

#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::autoscale {
namespace {

// Between the largest element of the last step and what the format holds, in bits.
constexpr double kDelayedMargin = 3;

Scale rounded_down(const Scale& scale) {
  if (scale.is_zero()) return scale;
  Scale result = with_exponent(scale, static_cast<int32_t>(std::floor(scale.rms())));
  result.remainder = 0;
  return result;
}

Scale with_largest_at(const Scale& scale, double bound) {
  if (scale.is_zero()) return scale;
  return with_exponent(scale, static_cast<int32_t>(std::ceil(scale.largest() - bound)));
}

}  // namespace

Scale settled_by(const Policy& policy, const Scale& scale, bool is_free) {
  switch (policy.method) {
    case Method::kPublished:
      return rounded_down(scale);
    case Method::kFixed:
      return with_exponent(scale, policy.exponent);
    case Method::kCarried:
    case Method::kUnit:
      return scale;
    case Method::kAutoscale:
    case Method::kStatic:
    case Method::kGradientRms:
    case Method::kAmax:
    case Method::kDelayed:
      return is_free ? settled(scale) : settled_if_due(scale);
  }
  runtime::unexpected("autoscale: method", static_cast<int>(policy.method));
}

std::optional<Scale> scale_without_looking(const Policy& policy, Origin origin, const Scale* expected, int32_t exponent,
                                           double largest) {
  const auto follows = [&] {
    Scale scale =
        expected == nullptr ? Scale{.exponent = exponent, .bound = kUnbounded} : settled_by(policy, *expected, false);
    scale.bound = std::min(scale.bound, largest + 1);  // beyond it is Inf
    return scale;
  };
  switch (policy.method) {
    case Method::kAutoscale: {
      if (expected == nullptr) return std::nullopt;
      const Scale scale = settled_by(policy, *expected, false);
      return scale.bound <= largest ? std::optional(scale) : std::nullopt;
    }
    case Method::kAmax:
    case Method::kDelayed:
      return std::nullopt;
    case Method::kStatic:
    case Method::kPublished:
    case Method::kGradientRms:
      return origin == Origin::kResult ? std::optional(follows()) : std::nullopt;
    case Method::kUnit:
      if (origin == Origin::kLossGradient) return std::nullopt;
      [[fallthrough]];
    case Method::kCarried:
      return Scale{.exponent = exponent, .bound = largest + 1};
    case Method::kFixed:
      return Scale{.exponent = policy.exponent, .bound = largest + 1};
  }
  runtime::unexpected("autoscale: method", static_cast<int>(policy.method));
}

Scale placed(const Policy& policy, const Scale& measured) {
  switch (policy.method) {
    case Method::kPublished: {
      const Scale scale = rounded_down(measured);
      return scale.bound <= kHeadroom ? scale : with_largest_at(scale, kHeadroom);
    }
    case Method::kAmax:
      return with_largest_at(measured, kHeadroom);
    case Method::kDelayed:
      return with_largest_at(measured, kHeadroom - kDelayedMargin);
    case Method::kAutoscale:
    case Method::kStatic:
    case Method::kGradientRms:
    case Method::kFixed:
    case Method::kCarried:
    case Method::kUnit:
      return measured;
  }
  runtime::unexpected("autoscale: method", static_cast<int>(policy.method));
}

Scale number_scale(const Policy& policy, double number) {
  const Scale scale = scale_of_number(number);
  const bool carried = policy.method == Method::kCarried || policy.method == Method::kUnit;
  return carried && !scale.is_zero() ? with_exponent(scale, 0) : scale;
}

bool widens_spread(const Policy& policy) { return !keeps_exponents(policy); }

bool keeps_exponents(const Policy& policy) {
  return policy.method != Method::kAutoscale && policy.method != Method::kAmax && policy.method != Method::kDelayed;
}

}  // namespace plimsoll::autoscale
