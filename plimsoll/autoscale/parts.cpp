#include "plimsoll/autoscale/parts.h"

#include "plimsoll/autoscale/storage.h"

namespace plimsoll::autoscale {

at::Tensor join(const Parts& parts, const std::shared_ptr<Session>& session) {
  const BelowAutoscale below;
  const at::Tensor data = parts.data.detach();
  const at::ScalarType dtype = storage_dtype(*session, data.dim(), false);
  const Scale measured =
      encode({.data = data, .exponent = parts.exponent}, *session, {.dtype = at::kFloat, .origin = Origin::kEntering})
          .scale;
  const Scale scale = measured.is_zero() ? measured : with_exponent(measured, parts.exponent);
  TORCH_CHECK(fits(scale.bound, dtype), "scaled_array: expected data that ", dtype, " holds, up to 2^", kHeadroom,
              ", got 2^", scale.bound);
  const at::Tensor joined = make_scaled(data.to(dtype, false, true), {.scale = scale, .session = session});
  if (parts.remainder.defined()) {
    TORCH_CHECK(parts.remainder.sizes() == data.sizes() && parts.remainder.scalar_type() == dtype,
                "autoscale: expected a remainder of ", dtype, data.sizes(), ", got ", parts.remainder.scalar_type(),
                parts.remainder.sizes());
    scaled_impl(joined).shared().remainder = parts.remainder.detach().clone();
  }
  return joined;
}

}  // namespace plimsoll::autoscale
