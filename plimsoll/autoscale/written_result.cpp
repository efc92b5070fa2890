#include "plimsoll/autoscale/written_result.h"

#include <cmath>

#include "plimsoll/autoscale/measure.h"

namespace plimsoll::autoscale {
namespace {

// Below it FP16 has lost bits that it would have had of data near 1.
constexpr double kSmallestRms = 0x1p-5;

}  // namespace

std::optional<Encoded> encoded_as_written(const at::Tensor& data, int32_t exponent, Session& session) {
  Scale scale = measure(data).scale;
  if (scale.is_zero()) return Encoded{.data = data, .scale = scale};
  if (!fits(scale.largest(), data.scalar_type()) || std::exp2(scale.rms()) < kSmallestRms) return std::nullopt;
  scale = with_exponent(scale, 0);
  scale.exponent = exponent;
  return encode({.data = data, .exponent = exponent}, session, {.dtype = data.scalar_type(), .expected = &scale});
}

}  // namespace plimsoll::autoscale
