#include "plimsoll/autoscale/storage.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>

#include "plimsoll/autoscale/measure.h"
#include "plimsoll/autoscale/several_scales.h"
#include "plimsoll/autoscale/stochastic.h"
#include "plimsoll/kernels/rescale/rescale.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::autoscale {
namespace {

// One factor of a product in FP32; a larger shift takes several.
constexpr int32_t kLargestStep = 126;
// Three of them lead from the smallest subnormal to beyond the largest number.
constexpr int32_t kLargestShift = 3 * kLargestStep;

// data * 2^exponent into memory of the same layout; the amax of the products. remainder of either: undefined, or beside
// it.
struct Part {
  const at::Tensor& data;
  const at::Tensor& remainder = {};
};
float rescale(const Part& from, int32_t exponent, const Part& to) {
  const auto pointer = [](const at::Tensor& x) { return x.defined() ? x.data_ptr() : nullptr; };
  return kernels::rescale({.input = from.data.const_data_ptr(),
                           .input_format = ops::format_of(from.data.scalar_type(), "autoscale"),
                           .input_remainder = pointer(from.remainder),
                           .output = to.data.mutable_data_ptr(),
                           .output_format = ops::format_of(to.data.scalar_type(), "autoscale"),
                           .output_remainder = pointer(to.remainder),
                           .count = from.data.numel(),
                           .factor = std::exp2(static_cast<float>(exponent))});
}

// Remainder that rounding to `rounded` lost, as SharedScale::remainder. It is at most half of the last bit of the data,
// which kRemainderShift makes about as large as they are.
at::Tensor cut_off(const Raw& value, const Scale& scale, const at::Tensor& rounded) {
  const int32_t left = scale.is_zero() ? 0 : value.exponent - scale.exponent;
  const at::Tensor exact = times_power(value.data, left, at::kFloat);
  return times_power(exact - rounded.to(at::kFloat), kRemainderShift, at::kFloat).to(rounded.scalar_type());
}

// data of scale.exponent, rounded.
Encoded rounded(const at::Tensor& data, const Scale& scale, Session& session, const Target& target) {
  const bool narrows = target.dtype != at::kFloat && data.scalar_type() == at::kFloat;
  const bool stochastic = target.rounding == Rounding::kStochastic && narrows;
  const Encoded result = {.data = stochastic ? round_stochastically(data, target.dtype) : data.to(target.dtype),
                          .scale = scale};
  if (narrows && session.settings().counts_range) session.add_range(lost_range(data, result.data));
  return result;
}

// At an exponent that was chosen without it; of what is too large the format's largest number.
Encoded saturated(const Raw& raw, int32_t exponent, const Scale& needed, Session& session, const Target& target) {
  Scale scale = with_exponent(needed, exponent);
  if (fits(scale.bound, target.dtype)) {
    const bool exactly = session.settings().counts_range || target.rounding == Rounding::kStochastic;
    return rounded(times_power(raw.data, raw.exponent - exponent, exactly ? at::kFloat : target.dtype), scale, session,
                   target);
  }
  const at::Tensor exact = times_power(raw.data, raw.exponent - exponent, at::kFloat);
  const double largest = std::exp2(kHeadroom + 1) * (1 - 0x1p-11);
  const at::Tensor held = at::where(at::isfinite(exact), exact.clamp(-largest, largest), exact);
  if (session.settings().counts_range) session.add_range(lost_range(exact, exact.to(target.dtype)));
  scale.bound = std::min(scale.bound, kHeadroom + 1);
  return {.data = held.to(target.dtype), .scale = scale};
}

}  // namespace

bool lie_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.layout() == at::kStrided && b.layout() == at::kStrided && a.is_non_overlapping_and_dense() &&
         a.sizes() == b.sizes() && a.strides() == b.strides();
}

at::Tensor times_power(const at::Tensor& data, int32_t exponent, at::ScalarType dtype) {
  int32_t left = std::clamp(exponent, -kLargestShift, kLargestShift);
  if (left == 0) return data.to(dtype);
  if (std::abs(left) <= kLargestStep && data.is_non_overlapping_and_dense() && dtype != at::kDouble &&
      data.scalar_type() != at::kDouble) {
    const at::Tensor result = at::empty_like(data, data.options().dtype(dtype));
    rescale({data}, left, {result});
    return result;
  }
  // Widened before, and narrowed after the multiplication, which thereby rounds once.
  at::Tensor product = c10::elementSize(dtype) > static_cast<size_t>(data.element_size()) ? data.to(dtype) : data;
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
  const at::Tensor value = times_power(impl.data(), impl.scale().exponent, dtype);
  return impl.scales().defined() ? value * spread(impl.scales(), value.sizes()) : value;
}

double largest_bound(at::ScalarType dtype) { return dtype == at::kHalf ? kHeadroom : 127.0; }

double smallest_normal(at::ScalarType dtype) { return dtype == at::kHalf ? -14.0 : -126.0; }

bool fits(double bound, at::ScalarType dtype) { return bound <= largest_bound(dtype); }

Encoded encode(const Raw& raw, Session& session, const Target& target) {
  const Policy& policy = session.settings().policy;
  const at::ScalarType dtype = target.dtype;
  if (const std::optional<Scale> scale =
          scale_without_looking(policy, target.origin, target.expected, raw.exponent, largest_bound(dtype))) {
    const int32_t left = scale->is_zero() ? 0 : raw.exponent - scale->exponent;
    const bool widen = target.rounding == Rounding::kStochastic || session.settings().counts_range;
    return rounded(times_power(raw.data, left, widen ? at::kFloat : dtype), *scale, session, target);
  }
  Measured measured = measure(raw.data);
  measured.scale = placed(policy, measured.scale);
  Scale needed = measured.scale;
  if (!needed.is_zero()) needed.exponent += raw.exponent;
  if (policy.method == Method::kDelayed && target.origin == Origin::kResult && dtype == at::kHalf) {
    const int32_t exponent = session.exchange_exponent(raw.data.numel(), needed.exponent);
    // Masks would overflow.
    if (measured.has_masks) needed.bound = kUnbounded;
    if (!needed.is_zero() && exponent > -kLargestExponent) return saturated(raw, exponent, needed, session, target);
  }
  if (measured.scale.is_zero()) return rounded(raw.data, measured.scale, session, target);
  const bool exactly =
      measured.has_masks || session.settings().counts_range || target.rounding == Rounding::kStochastic;
  at::Tensor data = times_power(raw.data, -measured.scale.exponent, exactly ? at::kFloat : dtype);
  if (measured.has_masks && measured.has_others && dtype == at::kHalf) {
    data = with_masks(data);
    needed.bound = std::max(needed.bound, kMaskData);
  }
  return rounded(data, needed, session, target);
}

at::Tensor measurable(const at::Tensor& x) {
  const at::ScalarType dtype = x.scalar_type();
  const bool reads = dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kFloat || dtype == at::kDouble;
  return reads ? x : x.to(at::kFloat);
}

Encoded encode_plain(const at::Tensor& plain, Session& session, at::ScalarType dtype) {
  const at::Tensor x = measurable(plain);
  const Target target = {.dtype = dtype, .origin = Origin::kEntering};
  if (keeps_exponents(session.settings().policy)) return encode({.data = x}, session, target);
  const Measured measured = measure(x);
  if (!measured.has_masks || measured.has_others) return encode({.data = x}, session, target);
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
  Encoded encoded = encode_plain(x.detach(), *session, storage_dtype(*session, x.dim(), false));
  // As an operand a mask fits any scale; as a tensor it has one.
  if (encoded.scale.is_mask()) encoded.scale = {.exponent = 0, .remainder = 0, .bound = kMaskData};
  // The memory of x stays its own.
  if (encoded.data.is_alias_of(x)) encoded.data = encoded.data.clone();
  return make_scaled(encoded.data, {.scale = encoded.scale, .session = session, .logical = x.scalar_type()});
}

void set_exponent(SharedScale& shared, int32_t exponent) {
  const BelowAutoscale below;
  const int32_t left = shared.scale.exponent - exponent;
  shared.codes = {};
  if (left != 0 && !shared.scale.is_zero()) {
    shared.base.copy_(times_power(shared.base, left, at::kFloat));
    if (shared.remainder.defined()) shared.remainder.copy_(times_power(shared.remainder, left, at::kFloat));
  }
  shared.scale = with_exponent(shared.scale, exponent);
}

bool widen_alone(const at::Tensor& tensor) {
  auto* impl = dynamic_cast<ScaledTensorImpl*>(tensor.unsafeGetTensorImpl());
  if (impl == nullptr || impl->shared_pointer().use_count() > 1 || !impl->is_base() || impl->scales().defined() ||
      impl->shared().parameter || (tensor.requires_grad() && tensor.is_leaf()))
    return false;
  impl->shared().base = impl->data().to(at::kFloat);
  impl->shared().codes = {};
  impl->set_view(impl->shared().base);
  return true;
}

at::Tensor remainder_of(const ScaledTensorImpl& x) {
  const at::Tensor &remainder = x.shared().remainder, &base = x.shared().base, &data = x.data();
  if (!remainder.defined() || x.is_base()) return remainder;
  if (!lie_alike(remainder, base)) return {};
  return remainder.as_strided(data.sizes(), data.strides(), data.storage_offset() - base.storage_offset());
}

at::Tensor data_to_write(const ScaledTensorImpl& target, int32_t exponent) {
  const at::Tensor &data = target.data(), remainder = remainder_of(target);
  if (!remainder.defined()) return exponent == 0 ? data : times_power(data, exponent, at::kFloat);
  if (std::abs(exponent) <= kLargestStep && lie_alike(data, remainder)) {
    const at::Tensor value = at::empty_like(data, data.options().dtype(at::kFloat));
    rescale({data, remainder}, exponent, {value});
    return value;
  }
  return times_power(data.to(at::kFloat).add_(times_power(remainder, -kRemainderShift, at::kFloat)), exponent,
                     at::kFloat);
}

at::Tensor value_to_write(const ScaledTensorImpl& target) {
  const int32_t exponent = target.scale().is_zero() ? 0 : target.scale().exponent;
  const at::Tensor value = data_to_write(target, exponent).to(at::kFloat);
  return target.scales().defined() ? value * spread(target.scales(), value.sizes()) : value;
}

bool keeps_remainder(const at::Tensor& target) {
  const ScaledTensorImpl& impl = scaled_impl(target);
  const SharedScale& shared = impl.shared();
  // C++'s optimizers write into parameter.data().
  const bool parameter = shared.parameter || (target.requires_grad() && target.is_leaf());
  if (!impl.is_base()) return remainder_of(impl).defined();
  return impl.data().scalar_type() != at::kFloat &&
         (shared.remainder.defined() || (parameter && shared.session->settings().rounding == Rounding::kRemainder));
}

namespace {

// The whole of a parameter, rounded at the exponent that it has, with what that cuts off: one pass. False where the
// exponent has to change, and then nothing of it holds.
bool assign_at_same_exponent(const at::Tensor& tensor, const Raw& value, const Scale* expected) {
  const ScaledTensorImpl& target = scaled_impl(tensor);
  SharedScale& shared = target.shared();
  const Settings& settings = shared.session->settings();
  const int32_t left = value.exponent - shared.scale.exponent;
  if (shared.scale.is_zero() || std::abs(left) > kLargestStep || settings.counts_range || !keeps_remainder(tensor) ||
      settings.policy.method == Method::kAmax || settings.policy.method == Method::kDelayed ||
      !lie_alike(value.data, target.data()))
    return false;
  if (!shared.remainder.defined() || !lie_alike(shared.remainder, target.data()))
    shared.remainder = at::empty_like(target.data());
  const double amax = rescale({value.data}, left, {target.data(), shared.remainder});
  if (!std::isfinite(amax) || amax == 0) return false;
  Scale scale = {.exponent = shared.scale.exponent, .bound = std::log2(amax)};
  if (keeps_exponents(settings.policy)) {
    scale.bound = std::min(scale.bound, largest_bound(target.data().scalar_type()) + 1);
  } else {
    scale.remainder =
        expected != nullptr ? with_exponent(*expected, scale.exponent).remainder : std::log2(rms_of(target.data()));
    if (!fits(scale.bound, target.data().scalar_type()) || std::fabs(scale.remainder) >= kSlack) return false;
  }
  shared.scale = scale;
  shared.codes = {};
  return true;
}

// Whether a whole tensor may have a scale that was not chosen for it.
bool takes_scale(const ScaledTensorImpl& target, const Scale& scale) {
  const Scale& now = target.scale();
  if (scale.is_zero() || !fits(scale.bound, target.data().scalar_type())) return false;
  if (!now.is_zero() && now.exponent == scale.exponent) return true;
  return !keeps_exponents(target.shared().session->settings().policy) && std::fabs(scale.remainder) < kSlack;
}

// All bits of the source. False where only its value fits, and then nothing is written.
bool move_parts(const at::Tensor& tensor, const ScaledTensorImpl& source) {
  const ScaledTensorImpl& target = scaled_impl(tensor);
  const at::Tensor& remainder = source.shared().remainder;
  if (!target.is_base() || !source.is_base() || target.scales().defined() || source.scales().defined() ||
      target.data().sizes() != source.data().sizes() || target.data().scalar_type() != source.data().scalar_type() ||
      !takes_scale(target, source.scale()) || (remainder.defined() && !keeps_remainder(tensor)))
    return false;
  SharedScale& shared = target.shared();
  target.data().copy_(source.data());
  if (remainder.defined()) {
    if (!shared.remainder.defined()) shared.remainder = at::empty_like(target.data());
    shared.remainder.copy_(remainder);
  } else if (shared.remainder.defined()) {
    shared.remainder.zero_();
  }
  shared.scale = source.scale();
  shared.codes = {};
  return true;
}

}  // namespace

void assign_scaled(const at::Tensor& target, const at::Tensor& source) {
  const ScaledTensorImpl& impl = scaled_impl(source);
  if (move_parts(target, impl)) return;
  const Scale scale = impl.scale();
  assign(target, {.data = data_to_write(impl), .exponent = scale.exponent}, &scale);
}

namespace {

// Remainder of what the tensor's data, written at this scale, have of the value.
void keep_cut_off(const at::Tensor& tensor, const Raw& value, const Scale& scale) {
  const ScaledTensorImpl& target = scaled_impl(tensor);
  if (!keeps_remainder(tensor)) return target.shared().remainder.reset();
  const at::Tensor lost = cut_off(value, scale, target.data());
  if (target.is_base()) {
    target.shared().remainder = lost;
  } else {
    remainder_of(target).copy_(lost);
  }
}

}  // namespace

void assign(const at::Tensor& tensor, const Raw& value, const Scale* expected) {
  const ScaledTensorImpl& target = scaled_impl(tensor);
  SharedScale& shared = target.shared();
  if (target.is_base() && assign_at_same_exponent(tensor, value, expected)) return;
  const at::ScalarType dtype = target.data().scalar_type();
  Session& session = *shared.session;
  const bool keeps_exponent = keeps_exponents(session.settings().policy) && !shared.scale.is_zero();
  Scale kept = shared.scale;
  kept.bound = kUnbounded;
  const Encoded encoded = encode(value, session,
                                 {.dtype = dtype,
                                  .expected = expected == nullptr && keeps_exponent ? &kept : expected,
                                  .rounding = session.settings().rounding});
  shared.codes = {};
  if (target.is_whole()) {
    target.data().copy_(encoded.data);
    shared.scale = encoded.scale;
    return keep_cut_off(tensor, value, encoded.scale);
  }
  const Scale& now = shared.scale;
  const int32_t exponent = std::max(now.exponent, encoded.scale.exponent);
  const double bound = std::max(with_exponent(now, exponent).bound, with_exponent(encoded.scale, exponent).bound);
  set_exponent(shared, exponent);
  const int32_t left = encoded.scale.is_zero() ? 0 : encoded.scale.exponent - exponent;
  target.data().copy_(times_power(encoded.data, left, dtype));
  shared.scale.bound = bound;
  keep_cut_off(tensor, value, encoded.scale.is_zero() ? encoded.scale : with_exponent(encoded.scale, exponent));
}

}  // namespace plimsoll::autoscale
