#include "plimsoll/autoscale/pointwise.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "plimsoll/autoscale/powers.h"
#include "plimsoll/autoscale/storage.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::autoscale {

using kernels::Function;
using torch::jit::Stack;

namespace {

// log2 of a factor in FP32 whose products lose nothing.
constexpr int32_t kLargestPointwiseFactor = 100;

const at::Tensor& argument_tensor(const Stack& stack, size_t arguments, size_t index) {
  return stack[stack.size() - arguments + index].toTensor();
}

// A scaled tensor whose data a pass reads.
const ScaledTensorImpl* pointwise_operand(const at::Tensor& x) {
  if (!is_scaled(x) || x.scalar_type() != at::kFloat) return nullptr;
  const ScaledTensorImpl& impl = scaled_impl(x);
  const bool narrow = impl.data().scalar_type() == at::kHalf || impl.data().scalar_type() == at::kBFloat16;
  return narrow && impl.data().numel() > 0 && !impl.scale().is_zero() ? &impl : nullptr;
}

// A number as torch has it among tensors: plain, without dimensions.
std::optional<double> plain_number(const c10::IValue& value) {
  if (value.isScalar())
    return value.toScalar().isComplex() ? std::nullopt : std::optional(value.toScalar().to<double>());
  if (!value.isTensor()) return std::nullopt;
  const at::Tensor& x = value.toTensor();
  if (is_scaled(x) || x.dim() > 0 || x.is_complex() || !x.device().is_cpu()) return std::nullopt;
  return x.item<double>();
}

int32_t settled_exponent(const Scale& scale) { return settled(scale).exponent; }

// The two operands: a tensor first, and a tensor or a number.
struct Two {
  const ScaledTensorImpl* a = nullptr;
  const ScaledTensorImpl* b = nullptr;
  double number = 1;
  Scale b_scale = {};
};
std::optional<Two> two_operands(const c10::IValue& first, const c10::IValue& second) {
  const ScaledTensorImpl* a = pointwise_operand(first.toTensor());
  if (a == nullptr) return std::nullopt;
  if (const ScaledTensorImpl* b = second.isTensor() ? pointwise_operand(second.toTensor()) : nullptr)
    return Two{.a = a, .b = b, .b_scale = b->scale()};
  const std::optional<double> factor = plain_number(second);
  if (!factor) return std::nullopt;
  const Scale scale = scale_of_number(*factor);
  if (scale.is_zero()) return std::nullopt;
  return Two{.a = a, .number = *factor, .b_scale = scale};
}

double alpha_of(const Stack& stack) { return stack.back().toScalar().to<double>(); }

// self and other, each times its factor.
std::optional<PointwiseCall> sum_with(const Plan& plan, const Stack& stack, double self, double other) {
  const auto argument = [&](size_t i) { return stack[stack.size() - plan.arguments.size() + i]; };
  std::optional<Two> two = two_operands(argument(0), argument(1));
  if (!two && argument(1).isTensor()) {
    two = two_operands(argument(1), argument(0));
    std::swap(self, other);
  }
  if (!two || !std::isfinite(self) || !std::isfinite(other) || self == 0 || other == 0) return std::nullopt;
  const Scale a = autoscale::product(two->a->scale(), scale_of_number(self)),
              b = autoscale::product(two->b_scale, scale_of_number(other));
  const int32_t common = std::max(two->a->scale().exponent, two->b_scale.exponent);
  const bool small = b.largest() < settled_exponent(sum(a, b)) + smallest_normal(two->a->data().scalar_type());
  if (two->b == nullptr && small) return std::nullopt;  // FP32 holds it
  const int32_t b_exponent = two->b != nullptr ? two->b_scale.exponent : 0;
  return PointwiseCall{.function = Function::kSum,
                       .a = two->a,
                       .b = two->b,
                       .a_factor = std::ldexp(self, two->a->scale().exponent - common),
                       .b_factor = std::ldexp(other * two->number, b_exponent - common),
                       .outside = common,
                       .exponent = settled_exponent(sum(a, b)),
                       .how = &CallCounts::storage};
}
// A function of the value whose results are about as large as it.
std::optional<PointwiseCall> call_alike(const Plan& plan, const Stack& stack, Function function) {
  const ScaledTensorImpl* a = pointwise_operand(argument_tensor(stack, plan.arguments.size(), 0));
  if (a == nullptr) return std::nullopt;
  return PointwiseCall{
      .function = function, .a = a, .a_factor = std::exp2(a->scale().exponent), .exponent = a->scale().exponent};
}

// The gradient of a result times what depends on a value.
std::optional<PointwiseCall> gradient_of(const Plan& plan, const Stack& stack, Function function) {
  const ScaledTensorImpl *a = pointwise_operand(argument_tensor(stack, plan.arguments.size(), 0)),
                         *b = pointwise_operand(argument_tensor(stack, plan.arguments.size(), 1));
  if (a == nullptr || b == nullptr) return std::nullopt;
  return PointwiseCall{.function = function,
                       .a = a,
                       .b = b,
                       .b_factor = std::exp2(b->scale().exponent),
                       .outside = a->scale().exponent,
                       .exponent = a->scale().exponent};
}
// The last argument is the form of GELU.
bool by_tanh(const Stack& stack) {
  const std::string_view form = stack.back().toStringView();
  TORCH_CHECK(form == "tanh" || form == "none", "gelu: expected approximate to be none or tanh, got ", form);
  return form == "tanh";
}
bool is_pointwise_factor(int32_t exponent) { return std::abs(exponent) <= kLargestPointwiseFactor; }

bool can_run_pointwise(const PointwiseCall& call) {
  const SharedScale &a = call.a->shared(), &b = call.b != nullptr ? call.b->shared() : a;
  const Settings& settings = a.session->settings();
  if (settings.policy.method != Method::kAutoscale || settings.counts_range || a.wide || b.wide) return false;
  const bool factors =
      std::isfinite(static_cast<float>(call.a_factor)) && std::isfinite(static_cast<float>(call.b_factor));
  const at::Tensor &first = call.a->data(), &second = call.b != nullptr ? call.b->data() : first;
  return factors && first.scalar_type() == settings.storage && second.scalar_type() == settings.storage &&
         lie_alike(first, second);
}

// Into y at an exponent. The scale that it has there; nothing where something is not finite, or is a mask.
std::optional<Scale> run_pointwise_at(const PointwiseCall& call, int32_t exponent, const at::Tensor& y) {
  const kernels::PointwiseResult seen =
      kernels::pointwise({.function = call.function,
                          .format = ops::format_of(y.scalar_type(), "autoscale"),
                          .a = call.a->data().const_data_ptr(),
                          .a_factor = static_cast<float>(call.a_factor),
                          .b = call.b != nullptr ? call.b->data().const_data_ptr() : nullptr,
                          .b_factor = static_cast<float>(call.b_factor),
                          .y = y.mutable_data_ptr(),
                          .y_factor = std::exp2(static_cast<float>(call.outside - exponent)),
                          .count = y.numel()});
  const auto amax = static_cast<double>(seen.amax);
  if (!(amax < std::ldexp(kMaskValue, -exponent)) || !std::isfinite(seen.sum_of_squares)) return std::nullopt;
  if (amax == 0) return zero_scale();
  const double mean = seen.sum_of_squares / static_cast<double>(y.numel());
  if (!(mean > 0)) return std::nullopt;
  return Scale{.exponent = exponent, .remainder = 0.5 * std::log2(mean), .bound = std::log2(amax)};
}

std::optional<Encoded> pointwise_result(const PointwiseCall& call) {
  const at::Tensor y = at::empty_like(call.a->data());
  int32_t exponent = call.exponent;
  for (int attempt = 0; attempt < 3 && is_pointwise_factor(call.outside - exponent); ++attempt) {
    const std::optional<Scale> scale = run_pointwise_at(call, exponent, y);
    if (!scale) return std::nullopt;
    const bool fitting = scale->is_zero() || fits(scale->bound, y.scalar_type());
    if (fitting && (scale->is_zero() || std::fabs(scale->remainder) < kSlack)) return Encoded{y, *scale};
    const int32_t needed = exponent + scale_of(std::exp2(scale->remainder), std::exp2(scale->bound)).exponent;
    if (needed == exponent) return Encoded{y, *scale};
    exponent = needed;
  }
  return std::nullopt;
}

}  // namespace

std::optional<PointwiseCall> product_call(const Plan& plan, const Stack& stack) {
  const auto argument = [&](size_t i) { return stack[stack.size() - plan.arguments.size() + i]; };
  std::optional<Two> two = two_operands(argument(0), argument(1));
  if (!two && argument(1).isTensor()) two = two_operands(argument(1), argument(0));
  if (!two) return std::nullopt;
  if (argument(1).isTensor() && are_one_tensor(argument(0).toTensor(), argument(1).toTensor()))
    return std::nullopt;  // a square has FP32 data
  const Scale expected = autoscale::product(two->a->scale(), two->b_scale);
  return PointwiseCall{.function = Function::kProduct,
                       .a = two->a,
                       .b = two->b,
                       .b_factor = two->b != nullptr ? 1 : std::ldexp(two->number, -two->b_scale.exponent),
                       .outside = two->a->scale().exponent + two->b_scale.exponent,
                       .exponent = settled_exponent(expected),
                       .how = &CallCounts::storage};
}
std::optional<PointwiseCall> sum_call(const Plan& plan, const Stack& stack) {
  return sum_with(plan, stack, 1, alpha_of(stack));
}
std::optional<PointwiseCall> difference_call(const Plan& plan, const Stack& stack) {
  return sum_with(plan, stack, 1, -alpha_of(stack));
}
std::optional<PointwiseCall> reverse_difference_call(const Plan& plan, const Stack& stack) {
  return sum_with(plan, stack, -alpha_of(stack), 1);
}

std::optional<PointwiseCall> tanh_call(const Plan& plan, const Stack& stack) {
  std::optional<PointwiseCall> call = call_alike(plan, stack, Function::kTanh);
  if (call) call->exponent = std::min(0, settled_exponent(call->a->scale()));
  return call;
}
std::optional<PointwiseCall> sigmoid_call(const Plan& plan, const Stack& stack) {
  std::optional<PointwiseCall> call = call_alike(plan, stack, Function::kSigmoid);
  if (call) call->exponent = 0;
  return call;
}
std::optional<PointwiseCall> silu_call(const Plan& plan, const Stack& stack) {
  return call_alike(plan, stack, Function::kSilu);
}
std::optional<PointwiseCall> gelu_call(const Plan& plan, const Stack& stack) {
  return call_alike(plan, stack, by_tanh(stack) ? Function::kGeluTanh : Function::kGelu);
}

std::optional<PointwiseCall> tanh_gradient_call(const Plan& plan, const Stack& stack) {
  return gradient_of(plan, stack, Function::kTanhGradient);
}
std::optional<PointwiseCall> sigmoid_gradient_call(const Plan& plan, const Stack& stack) {
  return gradient_of(plan, stack, Function::kSigmoidGradient);
}
std::optional<PointwiseCall> silu_gradient_call(const Plan& plan, const Stack& stack) {
  return gradient_of(plan, stack, Function::kSiluGradient);
}
std::optional<PointwiseCall> gelu_gradient_call(const Plan& plan, const Stack& stack) {
  return gradient_of(plan, stack, by_tanh(stack) ? Function::kGeluTanhGradient : Function::kGeluGradient);
}

bool try_pointwise(MakePointwiseCall* make, const Plan& plan, Stack& stack) {
  if (plan.in_place) return false;
  const std::optional<PointwiseCall> call = make(plan, stack);
  if (!call || !can_run_pointwise(*call)) return false;
  std::optional<Encoded> result;
  {
    const BelowAutoscale below;
    result = pointwise_result(*call);
  }
  if (!result) return false;
  const SharedScale &a = call->a->shared(), &b = call->b != nullptr ? call->b->shared() : a;
  const std::shared_ptr<Session> session = a.session;
  session->count(plan.name, call->how);
  const bool gradient = a.gradient || b.gradient;
  torch::jit::drop(stack, plan.arguments.size());
  stack.emplace_back(make_scaled(result->data, {.scale = result->scale, .session = session, .gradient = gradient}));
  return true;
}

}  // namespace plimsoll::autoscale
