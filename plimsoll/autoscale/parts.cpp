#include "plimsoll/autoscale/parts.h"

#include "plimsoll/autoscale/storage.h"

namespace plimsoll::autoscale {

at::Tensor join(const Parts& parts, const std::shared_ptr<Session>& session) {
  const BelowAutoscale below;
  const at::Tensor data = measurable(parts.data.detach());
  const at::ScalarType dtype = storage_dtype(*session, data.dim(), false);
  const Scale measured =
      encode({.data = data, .exponent = parts.exponent}, *session, {.dtype = at::kFloat, .origin = Origin::kEntering})
          .scale;
  const Scale scale = measured.is_zero() ? measured : with_exponent(measured, parts.exponent);
  TORCH_CHECK(fits(scale.bound, dtype), "scaled_array: expected data that ", dtype, " holds, up to 2^", kHeadroom,
              ", got 2^", scale.bound);
  return make_scaled(data.to(dtype, false, true), {.scale = scale, .session = session});
}

void set_remainder(const at::Tensor& parameter, const at::Tensor& remainder) {
  const at::Tensor& data = scaled_impl(parameter).data();
  TORCH_CHECK(remainder.sizes() == data.sizes() && remainder.scalar_type() == data.scalar_type(),
              "autoscale: expected a remainder of ", data.scalar_type(), data.sizes(), ", got ",
              remainder.scalar_type(), remainder.sizes());
  scaled_impl(parameter).shared().remainder = remainder.detach().clone();
}

}  // namespace plimsoll::autoscale
