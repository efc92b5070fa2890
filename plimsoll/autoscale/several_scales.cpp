#include "plimsoll/autoscale/several_scales.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>
#include <vector>

#include "plimsoll/autoscale/parts.h"
#include "plimsoll/autoscale/scaled_tensor_impl.h"
#include "plimsoll/autoscale/storage.h"

namespace plimsoll::autoscale {
namespace {

std::atomic<bool> used = false;

// log2 of a scale that is one power of two.
std::optional<int32_t> exponent_of_scale(const at::Tensor& scale) {
  if (scale.numel() != 1) return std::nullopt;
  int exponent = 0;
  if (std::frexp(scale.item<double>(), &exponent) != 0.5) return std::nullopt;
  return exponent - 1;
}

// As ScaledTensorImpl::scales() of data of these sizes.
at::Tensor checked(const at::Tensor& scale, at::IntArrayRef sizes) {
  const auto dims = static_cast<int64_t>(sizes.size());
  TORCH_CHECK_VALUE(scale.numel() == 1 || scale.dim() <= dims, "scaled_array: expected a scale of at most ", dims,
                    " dimensions, got ", scale.sizes());
  std::vector<int64_t> shape(sizes.size(), 1);
  if (scale.numel() != 1) std::copy_backward(scale.sizes().begin(), scale.sizes().end(), shape.end());
  const at::Tensor scales = scale.detach().to(at::kFloat, false, true).reshape(shape);
  for (int64_t i = 0; i < dims; ++i)
    TORCH_CHECK_VALUE(shape[i] > 0 && sizes[i] % shape[i] == 0, "scaled_array: expected a scale whose sizes divide ",
                      sizes, ", got ", scale.sizes());
  TORCH_CHECK_VALUE(at::isfinite(scales).logical_and_(scales > 0).all().item<bool>(),
                    "scaled_array: expected scales that are finite and larger than 0, got ", scale);
  return scales;
}

at::Tensor at_exponent(const at::Tensor& x, int32_t exponent) {
  const ScaledTensorImpl& impl = scaled_impl(x);
  const int32_t left = impl.scale().is_zero() ? 0 : impl.scale().exponent - exponent;
  const at::ScalarType dtype = impl.data().scalar_type();
  const Scale moved = with_exponent(impl.scale(), exponent);
  TORCH_CHECK(fits(moved.bound, dtype), "set_scale: expected a scale under which ", dtype, " holds the data, up to 2^",
              kHeadroom, ", got one that makes them 2^", moved.bound);
  return make_scaled(
      times_power(impl.data(), left, dtype).clone(),
      {.scale = moved, .session = impl.shared().session, .logical = x.scalar_type(), .wide = impl.shared().wide});
}

}  // namespace

bool has_scales(const at::Tensor& x) { return is_scaled(x) && scaled_impl(x).scales().defined(); }
bool any_has_scales() { return used; }

at::Tensor with_scales(const at::Tensor& x, const at::Tensor& scales) {
  const ScaledTensorImpl& impl = scaled_impl(x);
  if (scales.defined()) used = true;
  return at::Tensor(c10::make_intrusive<ScaledTensorImpl>(impl.data(), impl.shared_pointer(), x.scalar_type(), scales));
}

at::Tensor without_scales(const at::Tensor& x) { return has_scales(x) ? with_scales(x, {}) : x; }

at::Tensor spread(const at::Tensor& scales, at::IntArrayRef sizes) {
  at::Tensor result = scales;
  for (int64_t i = 0; i < scales.dim(); ++i) {
    const int64_t blocks = scales.size(i), size = sizes[static_cast<size_t>(i)];
    if (blocks != 1 && blocks != size) result = result.repeat_interleave(size / blocks, i);
  }
  return result;
}

bool can_broadcast(const at::Tensor& a, const at::Tensor& b) {
  for (int64_t i = 1; i <= std::min(a.dim(), b.dim()); ++i)
    if (a.size(-i) != b.size(-i) && a.size(-i) != 1 && b.size(-i) != 1) return false;
  return true;
}

at::Tensor scaled_array(const at::Tensor& data, const at::Tensor& scale, const std::shared_ptr<Session>& session) {
  const BelowAutoscale below;
  if (scale.numel() == 1 && scale.item<double>() == 0) return join({.data = at::zeros_like(data)}, session);
  if (const std::optional<int32_t> exponent = exponent_of_scale(scale))
    return join({.data = data, .exponent = *exponent}, session);
  const at::Tensor scales = checked(scale, data.sizes());
  return with_scales(join({.data = data}, session), scales);
}

at::Tensor as_scaled(const at::Tensor& x, const at::Tensor& scale, const std::shared_ptr<Session>& session) {
  const BelowAutoscale below;
  const at::Tensor data = value_of(x) / spread(checked(scale, x.sizes()), x.sizes());
  return with_logical(scaled_array(data, scale, session), x.scalar_type());
}

at::Tensor set_scale(const at::Tensor& x, const at::Tensor& scale) {
  const BelowAutoscale below;
  const std::optional<int32_t> exponent = exponent_of_scale(scale);
  if (exponent && !has_scales(x)) return at_exponent(x, *exponent);
  return as_scaled(x, scale, scaled_impl(x).shared().session);
}

at::Tensor rebalance(const at::Tensor& x, const at::Tensor& factor) {
  const BelowAutoscale below;
  const std::optional<int32_t> exponent = exponent_of_scale(factor);
  const ScaledTensorImpl& impl = scaled_impl(x);
  if (exponent) return with_scales(at_exponent(without_scales(x), impl.scale().exponent + *exponent), impl.scales());
  at::Tensor scale = scale_of(x).to(at::kFloat), factors = checked(factor, x.sizes());
  if (!can_broadcast(scale, factors)) {
    scale = spread(scale, x.sizes());
    factors = spread(factors, x.sizes());
  }
  return set_scale(x, scale * factors);
}

at::Tensor scale_of(const at::Tensor& x) {
  const ScaledTensorImpl& impl = scaled_impl(x);
  const at::Tensor power =
      at::scalar_tensor(impl.scale().is_zero() ? 0 : std::exp2(impl.scale().exponent), at::kDouble);
  return has_scales(x) ? impl.scales() * power : power;
}

}  // namespace plimsoll::autoscale
