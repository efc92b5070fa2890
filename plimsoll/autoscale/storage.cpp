#include "plimsoll/autoscale/storage.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>

#include "plimsoll/autoscale/stochastic.h"
#include "plimsoll/kernels/gradient/gradient.h"
#include "plimsoll/ops/dtype.h"
#include "plimsoll/ops/quantize.h"

namespace plimsoll::autoscale {
namespace {

// One factor of a product in FP32; a larger shift takes several.
constexpr int32_t kLargestStep = 126;
// Three of them lead from the smallest subnormal to beyond the largest number.
constexpr int32_t kLargestShift = 3 * kLargestStep;

// The data of masks, which are larger than any other.
at::Tensor with_masks(const at::Tensor& data) {
  const at::Tensor masks = data.abs().gt(std::exp2(kHeadroom)).logical_and_(at::isfinite(data));
  return at::where(masks, data.sign() * std::exp2(kMaskData), data);
}

struct Measured {
  Scale scale;
  bool has_masks = false, has_others = false;  // among the finite values that are not zero
};

Measured measured_number(double x) {
  const double magnitude = std::fabs(x);
  if (!std::isfinite(magnitude) || magnitude == 0) return {.scale = zero_scale()};
  const bool mask = magnitude >= kMaskValue;
  return {.scale = scale_of(magnitude, magnitude), .has_masks = mask, .has_others = !mask};
}

// One read for the rms and one for the largest element.
Measured measure(const at::Tensor& x) {
  if (x.numel() == 0) return {.scale = zero_scale()};
  if (x.numel() == 1) return measured_number(x.item<double>());
  const at::Tensor values = (x.scalar_type() == at::kDouble ? x.to(at::kFloat) : x).contiguous();
  const kernels::GradientTensor tensor = {
      .data = values.data_ptr(), .format = ops::format_of(values.scalar_type(), "autoscale"), .count = values.numel()};
  const kernels::GradientSummary summary = kernels::gradient_pass({.tensors = &tensor, .tensor_count = 1});
  const double amax = ops::amax(values.view({1, -1}));
  if (summary.non_finite == 0 && amax < kMaskValue) {
    const double rms = std::sqrt(summary.sum_of_squares / static_cast<double>(values.numel()));
    return {.scale = scale_of(rms, amax), .has_others = amax > 0};
  }
  const at::Tensor magnitudes = values.abs(), finite = at::isfinite(values);
  const at::Tensor masks = magnitudes.ge(kMaskValue).logical_and_(finite);
  Measured result = measure(at::where(finite.logical_and(masks.logical_not()), values, 0));
  result.has_masks = masks.any().item<bool>();
  if (result.has_masks && !result.has_others) {
    const double largest = at::where(masks, magnitudes, 0).max().item<double>();
    result.scale = scale_of(largest, largest);
  }
  return result;
}

// What rounding to `rounded` lost, as SharedScale::remainder. It is at most half of the last bit of the data, which
// kRemainderShift makes about as large as they are.
at::Tensor cut_off(const Raw& value, const Encoded& encoded, const at::Tensor& rounded) {
  const int32_t left = encoded.scale.is_zero() ? 0 : value.exponent - encoded.scale.exponent;
  const at::Tensor exact = times_power(value.data, left, at::kFloat);
  return times_power(exact - rounded.to(at::kFloat), kRemainderShift, at::kFloat).to(rounded.scalar_type());
}

// data of scale.exponent, rounded.
Encoded rounded(at::Tensor data, at::ScalarType dtype, const Scale& scale, Rounding rounding) {
  const bool stochastic = rounding == Rounding::kStochastic && dtype != at::kFloat && data.scalar_type() == at::kFloat;
  return {.data = stochastic ? round_stochastically(data, dtype) : data.to(dtype), .scale = scale};
}

}  // namespace

at::Tensor times_power(const at::Tensor& data, int32_t exponent, at::ScalarType dtype) {
  int32_t left = std::clamp(exponent, -kLargestShift, kLargestShift);
  if (left == 0) return data.to(dtype);
  // Widened before, and narrowed after the multiplication, which thereby rounds once.
  at::Tensor product = data.scalar_type() != at::kFloat && dtype == at::kFloat ? data.to(dtype) : data;
  bool own = !product.is_same(data);
  while (left != 0) {
    const int32_t step = std::clamp(left, -kLargestStep, kLargestStep);
    left -= step;
    if (own) {
      product.mul_(std::exp2(step));
    } else {
      product = at::mul(product, std::exp2(step));
    }
    own = true;
  }
  return product.to(dtype);
}

at::Tensor value_of(const at::Tensor& tensor) {
  if (!is_scaled(tensor)) return tensor;
  const ScaledTensorImpl& impl = scaled_impl(tensor);
  const at::ScalarType dtype = tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return times_power(impl.data(), impl.scale().exponent, dtype);
}

bool fits(double bound, at::ScalarType dtype) { return bound <= (dtype == at::kHalf ? kHeadroom : 127.0); }

Encoded encode(const Raw& raw, at::ScalarType dtype, const Scale* expected, Rounding rounding) {
  if (expected != nullptr) {
    const Scale scale = settled_if_due(*expected);
    if (fits(scale.bound, dtype)) {
      const int32_t left = scale.is_zero() ? 0 : raw.exponent - scale.exponent;
      const bool widen = rounding == Rounding::kStochastic;
      return rounded(times_power(raw.data, left, widen ? at::kFloat : dtype), dtype, scale, rounding);
    }
  }
  Measured measured = measure(raw.data);
  if (measured.scale.is_zero()) return rounded(raw.data, dtype, measured.scale, rounding);
  at::Tensor data = times_power(raw.data, -measured.scale.exponent, at::kFloat);
  if (measured.has_masks && measured.has_others && dtype == at::kHalf) {
    data = with_masks(data);
    measured.scale.bound = std::max(measured.scale.bound, kMaskData);
  }
  measured.scale.exponent += raw.exponent;
  return rounded(std::move(data), dtype, measured.scale, rounding);
}

Encoded encode_plain(const at::Tensor& x, at::ScalarType dtype) {
  const Measured measured = measure(x);
  if (!measured.has_masks || measured.has_others) return encode({.data = x}, dtype);
  return {.data = with_masks(x.to(at::kFloat)).to(dtype), .scale = mask_scale()};
}

at::ScalarType storage_dtype(const Session& session, int64_t dimensions, bool wide) {
  return wide || dimensions == 0 ? at::kFloat : session.settings().storage;
}

at::Tensor as_scaled(const at::Tensor& x, const std::shared_ptr<Session>& session) {
  if (is_scaled(x)) return x;
  TORCH_CHECK(x.is_floating_point() && x.device().is_cpu() && x.layout() == at::kStrided,
              "as_scaled: expected a strided floating point tensor on the CPU, got ", x.toString());
  const BelowAutoscale below;
  Encoded encoded = encode_plain(x.detach(), storage_dtype(*session, x.dim(), false));
  // As an operand a mask fits any scale; as a tensor it has one.
  if (encoded.scale.is_mask()) encoded.scale = {.exponent = 0, .remainder = 0, .bound = kMaskData};
  // The memory of x stays its own.
  if (encoded.data.is_alias_of(x)) encoded.data = encoded.data.clone();
  return make_scaled(encoded.data, {.scale = encoded.scale, .session = session, .logical = x.scalar_type()});
}

void set_exponent(SharedScale& shared, int32_t exponent) {
  const BelowAutoscale below;
  const int32_t left = shared.scale.exponent - exponent;
  if (left != 0 && !shared.scale.is_zero()) {
    shared.base.copy_(times_power(shared.base, left, at::kFloat));
    if (shared.remainder.defined()) shared.remainder.copy_(times_power(shared.remainder, left, at::kFloat));
  }
  shared.scale = with_exponent(shared.scale, exponent);
}

at::Tensor data_to_write(const ScaledTensorImpl& target) {
  const at::Tensor& remainder = target.shared().remainder;
  if (!remainder.defined() || !target.is_base()) return target.data();
  return target.data().to(at::kFloat).add_(times_power(remainder, -kRemainderShift, at::kFloat));
}

bool keeps_remainder(const at::Tensor& target) {
  const ScaledTensorImpl& impl = scaled_impl(target);
  const SharedScale& shared = impl.shared();
  const bool parameter = target.requires_grad() && target.is_leaf();
  return impl.is_base() && impl.data().scalar_type() != at::kFloat &&
         (shared.remainder.defined() || (parameter && shared.session->settings().rounding == Rounding::kRemainder));
}

void assign(const at::Tensor& tensor, const Raw& value, const Scale* expected) {
  const ScaledTensorImpl& target = scaled_impl(tensor);
  SharedScale& shared = target.shared();
  const at::ScalarType dtype = target.data().scalar_type();
  const Encoded encoded = encode(value, dtype, expected, shared.session->settings().rounding);
  if (target.is_whole()) {
    const bool keeps = keeps_remainder(tensor);
    target.data().copy_(encoded.data);
    shared.scale = encoded.scale;
    shared.remainder = keeps ? cut_off(value, encoded, target.data()) : at::Tensor();
    return;
  }
  shared.remainder.reset();
  const Scale& now = shared.scale;
  const int32_t exponent = std::max(now.exponent, encoded.scale.exponent);
  const double bound = std::max(with_exponent(now, exponent).bound, with_exponent(encoded.scale, exponent).bound);
  set_exponent(shared, exponent);
  const int32_t left = encoded.scale.is_zero() ? 0 : encoded.scale.exponent - exponent;
  target.data().copy_(times_power(encoded.data, left, dtype));
  shared.scale.bound = bound;
}

}  // namespace plimsoll::autoscale
