#include "plimsoll/autoscale/casts.h"

#include <ATen/ops/allclose.h>
#include <c10/core/ScalarType.h>

#include <optional>

#include "plimsoll/autoscale/measure.h"

namespace plimsoll::autoscale {
namespace {

// log2 of a number that `dtype` holds. A cast may make of a larger one the largest that the dtype has.
double held_by(at::ScalarType dtype) {
  constexpr double kFp8 = 7.5, kHalf = 15.5, kWide = 127;
  if (dtype == at::kBFloat16) return kWide;
  return dtype == at::kHalf ? kHalf : kFp8;
}

// values at the exponent of x, from which they were cast. A cast to fewer bits leaves multiples of the last bit that
// the data had, so their format holds them all. Nothing where that does not follow.
std::optional<Encoded> at_same_exponent(const ScaledTensorImpl& x, const at::Tensor& values, at::ScalarType dtype) {
  if (x.scales().defined() || x.scale().is_zero() || x.scale().largest() > held_by(dtype) ||
      dtype == at::kFloat8_e8m0fnu)  // which has no zero
    return std::nullopt;
  const at::ScalarType format = x.data().scalar_type();
  const int32_t exponent = x.scale().exponent;
  const Scale scale = measure(values).scale;
  if (scale.is_zero()) return Encoded{.data = values.to(format), .scale = scale};
  const Scale kept = with_exponent(scale, exponent);
  if (!fits(kept.bound, format)) return std::nullopt;
  return Encoded{.data = times_power(values, -exponent, format), .scale = kept};
}

}  // namespace

bool is_narrow(at::ScalarType dtype) {
  return at::isFloatingType(dtype) && dtype != at::kFloat && dtype != at::kDouble;
}

at::Tensor cast_values(const at::Tensor& x, at::ScalarType dtype) { return value_of(x).to(dtype).to(at::kFloat); }

Encoded encode_exactly(const at::Tensor& values, at::ScalarType dtype) {
  const Scale scale = measure(values).scale;
  if (scale.is_zero()) return {.data = values.to(dtype), .scale = scale};
  constexpr double kNoTolerance = 0;
  const at::Tensor data = times_power(values, -scale.exponent, dtype);
  const at::Tensor held = times_power(data, scale.exponent, at::kFloat);
  if (!at::allclose(held, values, kNoTolerance, kNoTolerance, /*equal_nan=*/true))
    return {.data = values, .scale = with_exponent(scale, 0)};
  return {.data = data, .scale = scale};
}

at::Tensor with_cast_values(const at::Tensor& x, const at::Tensor& values, at::ScalarType dtype) {
  const ScaledTensorImpl& impl = scaled_impl(x);
  const std::optional<Encoded> same = at_same_exponent(impl, values, dtype);
  const Encoded encoded = same ? *same : encode_exactly(values, impl.data().scalar_type());
  ScaledOptions options = options_like(x, encoded.scale);
  options.logical = dtype;
  return make_scaled(encoded.data, options);
}

}  // namespace plimsoll::autoscale
