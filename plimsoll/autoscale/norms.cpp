#include "plimsoll/autoscale/norms.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "plimsoll/autoscale/execute.h"
#include "plimsoll/autoscale/written_result.h"
#include "plimsoll/kernels/norm/norm.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::autoscale {
namespace {

using torch::jit::Stack;

// The input's largest exponent e: epsilon times 2^-2e stays well within FP32.
constexpr int32_t kLargestInputExponent = 40;
// The largest exponent that the weight takes.
constexpr int32_t kLargestGainExponent = 100;

const c10::IValue& norm_argument(const Plan& plan, const Stack& stack, size_t index) {
  return stack[stack.size() - plan.arguments.size() + index];
}

at::Tensor optional_tensor(const c10::IValue& value) { return value.isNone() ? at::Tensor() : value.toTensor(); }

// Rows of 16 bits that the kernel reads.
bool is_normalizable(const at::Tensor& x) {
  if (!is_scaled(x) || x.scalar_type() != at::kFloat) return false;
  const ScaledTensorImpl& impl = scaled_impl(x);
  const Settings& settings = impl.shared().session->settings();
  return settings.policy.method == Method::kAutoscale && !settings.counts_range && !impl.shared().wide &&
         impl.data().scalar_type() == settings.storage && impl.data().scalar_type() != at::kFloat &&
         impl.data().is_contiguous() && impl.data().numel() > 0 && !impl.scale().is_zero() &&
         std::abs(impl.scale().exponent) <= kLargestInputExponent;
}

// The weight and the bias: none, or scaled and not zero.
bool is_norm_parameter(const at::Tensor& x) {
  return !x.defined() || (is_scaled(x) && !scaled_impl(x).scale().is_zero());
}

at::Tensor parameter_row(const at::Tensor& parameter, int32_t exponent) {
  const ScaledTensorImpl& impl = scaled_impl(parameter);
  return times_power(impl.data(), impl.scale().exponent + exponent, at::kFloat).contiguous();
}

struct NormShape {
  int64_t rows, cols;
};
NormShape norm_shape(const at::Tensor& x, const std::vector<int64_t>& normalized) {
  const int64_t cols = c10::multiply_integers(normalized);
  return {.rows = x.numel() / std::max<int64_t>(cols, 1), .cols = cols};
}

// Rows of rms 1, times a weight, and a bias added: no element is larger than the root of a row's length.
Scale normalized_scale(int64_t cols, const at::Tensor& weight, const at::Tensor& bias) {
  Scale scale = {.bound = 0.5 * std::log2(static_cast<double>(cols))};
  if (weight.defined()) scale = product(scale, scaled_impl(weight).scale());
  if (bias.defined()) scale = sum(scale, scaled_impl(bias).scale());
  return settled(scale);
}

// One number for each row, as torch has it: 1 along what is normalised.
at::Tensor row_numbers(const at::Tensor& x, size_t normalized_dims) {
  std::vector<int64_t> sizes = x.sizes().vec();
  std::fill(sizes.end() - static_cast<std::ptrdiff_t>(normalized_dims), sizes.end(), 1);
  return at::empty(sizes, at::kFloat);
}

at::Tensor norm_result(const Encoded& encoded, const SharedScale& like, bool gradient) {
  return make_scaled(encoded.data, {.scale = encoded.scale, .session = like.session, .gradient = gradient});
}

bool normalize_rows(const Plan& plan, Stack& stack) {
  const at::Tensor x = norm_argument(plan, stack, 0).toTensor(),
                   weight = optional_tensor(norm_argument(plan, stack, 2)),
                   bias = optional_tensor(norm_argument(plan, stack, 3));
  if (!is_normalizable(x) || !is_norm_parameter(weight) || !is_norm_parameter(bias)) return false;
  const std::vector<int64_t> normalized = norm_argument(plan, stack, 1).toIntVector();
  const ScaledTensorImpl& impl = scaled_impl(x);
  const NormShape shape = norm_shape(x, normalized);
  Scale scale = normalized_scale(shape.cols, weight, bias);
  if (scale.is_zero() || std::abs(scale.exponent) > kLargestGainExponent) return false;
  const BelowAutoscale below;
  const int32_t in = impl.scale().exponent;
  const at::Tensor gain = weight.defined() ? parameter_row(weight, -scale.exponent)
                                           : at::full({shape.cols}, std::exp2(-scale.exponent), at::kFloat);
  const at::Tensor shift = bias.defined() ? parameter_row(bias, -scale.exponent) : at::Tensor();
  const at::Tensor y = at::empty_like(impl.data()), mean = row_numbers(x, normalized.size()),
                   rstd = row_numbers(x, normalized.size());
  const format::Format format = ops::format_of(y.scalar_type(), "autoscale");
  float amax = 0;
  kernels::norm_forward({.rows = shape.rows,
                         .cols = shape.cols,
                         .x = impl.data().const_data_ptr(),
                         .x_format = format,
                         .weight = gain.const_data_ptr<float>(),
                         .bias = shift.defined() ? shift.const_data_ptr<float>() : nullptr,
                         .epsilon = static_cast<float>(std::ldexp(norm_argument(plan, stack, 4).toDouble(), -2 * in)),
                         .y = y.mutable_data_ptr(),
                         .y_format = format,
                         .amax = &amax,
                         .mean = mean.mutable_data_ptr<float>(),
                         .rstd = rstd.mutable_data_ptr<float>()});
  if (!std::isfinite(amax) || amax == 0) return false;
  scale.bound = std::log2(static_cast<double>(amax));
  scale.remainder = std::min(scale.remainder, scale.bound);
  if (!fits(scale.bound, y.scalar_type())) return false;
  if (in != 0) {
    mean.mul_(std::exp2(in));
    rstd.mul_(std::exp2(-in));
  }
  const SharedScale& shared = impl.shared();
  shared.session->count(plan.name, &CallCounts::wide);
  const at::Tensor result = norm_result({.data = y, .scale = scale}, shared, shared.gradient);
  torch::jit::drop(stack, plan.arguments.size());
  torch::jit::push(stack, result, mean, rstd);
  return true;
}

// log2 of what the gradient of the input is about, by the first row.
double input_gradient_size(const Scale& gradient, const at::Tensor& rstd, const at::Tensor& weight) {
  const double factor = weight.defined() ? scaled_impl(weight).scale().rms() : 0;
  return gradient.rms() + std::log2(static_cast<double>(*rstd.const_data_ptr<float>())) + factor;
}

bool normalize_gradient(const Plan& plan, Stack& stack) {
  const at::Tensor dy = norm_argument(plan, stack, 0).toTensor(), x = norm_argument(plan, stack, 1).toTensor(),
                   mean = norm_argument(plan, stack, 3).toTensor(), rstd = norm_argument(plan, stack, 4).toTensor(),
                   weight = optional_tensor(norm_argument(plan, stack, 5));
  const c10::List<bool> mask = norm_argument(plan, stack, 7).toBoolList();
  if (!is_normalizable(dy) || !is_normalizable(x) || !is_norm_parameter(weight) || is_scaled(mean) || is_scaled(rstd) ||
      !mean.is_contiguous() || !rstd.is_contiguous() || rstd.numel() == 0)
    return false;
  const ScaledTensorImpl &gradient = scaled_impl(dy), &input = scaled_impl(x);
  const NormShape shape = norm_shape(x, norm_argument(plan, stack, 2).toIntVector());
  const double size = input_gradient_size(gradient.scale(), rstd, weight);
  if (!std::isfinite(size) || std::fabs(size) > kLargestGainExponent) return false;
  const auto exponent = static_cast<int32_t>(std::floor(size + 0.5));
  const BelowAutoscale below;
  const int32_t in = input.scale().exponent, out = gradient.scale().exponent, left = out - in - exponent;
  if (std::abs(left) > kLargestGainExponent) return false;
  const at::Tensor gain =
      weight.defined() ? parameter_row(weight, left) : at::full({shape.cols}, std::exp2(left), at::kFloat);
  const at::Tensor means = times_power(mean, -in, at::kFloat), rstds = times_power(rstd, in, at::kFloat);
  const at::Tensor dx = at::empty_like(input.data());
  const auto sums = [&](size_t i) { return mask.get(i) ? at::empty({shape.cols}, at::kFloat) : at::Tensor(); };
  const at::Tensor dweight = sums(1), dbias = sums(2);
  const format::Format format = ops::format_of(dx.scalar_type(), "autoscale");
  kernels::norm_backward({.rows = shape.rows,
                          .cols = shape.cols,
                          .dy = gradient.data().const_data_ptr(),
                          .dy_format = format,
                          .x = input.data().const_data_ptr(),
                          .x_format = format,
                          .weight = gain.const_data_ptr<float>(),
                          .mean = means.const_data_ptr<float>(),
                          .rstd = rstds.const_data_ptr<float>(),
                          .dx = dx.mutable_data_ptr(),
                          .dx_format = format,
                          .dweight = dweight.defined() ? dweight.mutable_data_ptr<float>() : nullptr,
                          .dbias = dbias.defined() ? dbias.mutable_data_ptr<float>() : nullptr});
  const SharedScale& shared = gradient.shared();
  Session& session = *shared.session;
  const std::optional<Encoded> encoded_dx = encoded_as_written(dx, exponent, session);
  if (!encoded_dx) return false;
  const auto row = [&](const at::Tensor& sum) {
    if (!sum.defined()) return at::Tensor();
    const at::Tensor shaped = sum.view(norm_argument(plan, stack, 2).toIntVector());
    return norm_result(encode({.data = shaped, .exponent = out}, session, {.dtype = dx.scalar_type()}), shared,
                       shared.gradient);
  };
  const at::Tensor results[] = {mask.get(0) ? norm_result(*encoded_dx, shared, shared.gradient) : at::Tensor(),
                                row(dweight), row(dbias)};
  session.count(plan.name, &CallCounts::wide);
  torch::jit::drop(stack, plan.arguments.size());
  torch::jit::push(stack, results[0], results[1], results[2]);
  return true;
}

}  // namespace

void normalize(const Plan& plan, Stack& stack) {
  if (!normalize_rows(plan, stack)) execute(plan, stack);
}

void normalize_backward(const Plan& plan, Stack& stack) {
  if (!normalize_gradient(plan, stack)) execute(plan, stack);
}

}  // namespace plimsoll::autoscale
