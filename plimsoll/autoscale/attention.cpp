#include "plimsoll/autoscale/attention.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <tuple>

#include "plimsoll/autoscale/execute.h"
#include "plimsoll/autoscale/measure.h"
#include "plimsoll/autoscale/operands.h"
#include "plimsoll/autoscale/storage.h"
#include "plimsoll/autoscale/written_result.h"
#include "plimsoll/ops/attention/attention_pass.h"

namespace plimsoll::autoscale {
namespace {

using torch::jit::Stack;

// The scores' largest exponent: beyond it FP32 would not hold what FP32 on the values holds.
constexpr int32_t kLargestScoreExponent = 100;
// log2 of what the kernel multiplies gradients by, at most.
constexpr double kLargestSize = 100;

bool measures_results(const Settings& settings) {
  return settings.counts_range || settings.policy.method == Method::kAmax || settings.policy.method == Method::kDelayed;
}

bool is_readable(const at::Tensor& x) {
  if (!is_scaled(x)) return false;
  const ScaledTensorImpl& impl = scaled_impl(x);
  return impl.data().dim() == 4 && !impl.scale().is_zero() &&
         impl.data().scalar_type() == impl.shared().session->settings().storage;
}

int32_t exponent_of(const at::Tensor& x) { return scaled_impl(x).scale().exponent; }

// The last four arguments of both operators: dropout, whether it is causal, the mask, the factor of the scores. Nothing
// where the kernel does not do the same.
std::optional<ops::AttentionRules> attention_rules(const Stack& stack, const at::Tensor& query, const at::Tensor& key) {
  const auto last = [&](size_t i) -> const c10::IValue& { return stack[stack.size() - i]; };
  const int32_t exponent = exponent_of(query) + exponent_of(key);
  ops::AttentionRules rules;
  rules.causal = last(3).toBool() ? ops::Causal::kTopLeft : ops::Causal::kNone;
  if (last(4).toDouble() != 0 || std::abs(exponent) > kLargestScoreExponent) return std::nullopt;
  const at::Tensor mask = last(2).isNone() ? at::Tensor() : last(2).toTensor();
  if (mask.defined()) {
    if (!mask.is_floating_point()) return std::nullopt;
    rules.bias = value_of(mask).to(at::kFloat);
  }
  const double factor = last(1).isNone() ? 1 / std::sqrt(static_cast<double>(query.size(3))) : last(1).toDouble();
  rules.scale = std::ldexp(factor, exponent);
  return rules;
}

ops::AttentionOperands attention_operands(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  return {.query = scaled_impl(query).data(), .key = scaled_impl(key).data(), .value = scaled_impl(value).data()};
}

at::Tensor make_result(const Encoded& encoded, const Operands& operands) {
  return make_scaled(encoded.data, {.scale = encoded.scale,
                                    .session = operands.session(),
                                    .logical = operands.logical(),
                                    .gradient = operands.gradient()});
}

// Replaces the call's arguments by its results.
template <class... Results>
void finish_call(const Plan& plan, const Operands& operands, Stack& stack, const Results&... results) {
  operands.session()->count(plan.name, &CallCounts::storage);
  torch::jit::drop(stack, plan.arguments.size());
  torch::jit::push(stack, results...);
}

// Data are a mean of the values' data, weighted by query.
Encoded attended(const at::Tensor& data, const Scale& value, Session& session) {
  Scale expected = value;
  const double rms = data.numel() > 0 ? rms_of(data) : 0;
  if (std::isfinite(rms) && rms > 0) expected.remainder = std::log2(rms);
  return encode({.data = data, .exponent = value.exponent}, session,
                {.dtype = data.scalar_type(), .expected = &expected});
}

// Distance, as log2, of the gradients' data from 1 under the scales of the operands alone. The weights of a query lie
// somewhere between one key's and the same of all keys, so their rms is between 1 and keys^(-1/2).
struct GradientSizes {
  int32_t q = 0, k = 0, v = 0;
};
GradientSizes gradient_sizes(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                             const at::Tensor& value, double factor) {
  const auto remainder = [](const at::Tensor& x) { return scaled_impl(x).scale().remainder; };
  const auto log_size = [](const at::Tensor& x, int64_t dim) {
    return std::log2(static_cast<double>(std::max<int64_t>(1, x.size(dim))));
  };
  const double weights = -log_size(key, 2) / 4;
  const double scores =
      std::log2(std::fabs(factor)) + weights + log_size(value, 3) / 2 + remainder(gradient) + remainder(value);
  const double keys = (log_size(query, 2) - log_size(key, 2)) / 2;
  const auto rounded = [](double x) {
    return static_cast<int32_t>(std::clamp(std::round(x), -kLargestSize, kLargestSize));
  };
  return {.q = rounded(scores + remainder(key)),
          .k = rounded(scores + keys + remainder(query)),
          .v = rounded(weights + keys + remainder(gradient))};
}

bool attend_forward(const Plan& plan, Stack& stack) {
  const Operands operands(plan, stack);
  const auto argument = [&](size_t i) { return stack[stack.size() - plan.arguments.size() + i].toTensor(); };
  const at::Tensor query = argument(0), key = argument(1), value = argument(2);
  if (measures_results(operands.session()->settings()) || !is_readable(query) || !is_readable(key) ||
      !is_readable(value))
    return false;
  const BelowAutoscale below;
  const std::optional<ops::AttentionRules> rules = attention_rules(stack, query, key);
  if (!rules) return false;
  const auto [output, lse] = ops::attend(attention_operands(query, key, value), *rules);
  const Encoded encoded = attended(output, scaled_impl(value).scale(), *operands.session());
  finish_call(plan, operands, stack, make_result(encoded, operands), lse);
  return true;
}

bool attend_gradient(const Plan& plan, Stack& stack) {
  const Operands operands(plan, stack);
  const auto argument = [&](size_t i) { return stack[stack.size() - plan.arguments.size() + i].toTensor(); };
  const at::Tensor gradient = argument(0), query = argument(1), key = argument(2), value = argument(3),
                   out = argument(4);
  for (const at::Tensor& x : {gradient, query, key, value, out})
    if (!is_readable(x)) return false;
  if (measures_results(operands.session()->settings())) return false;
  const BelowAutoscale below;
  const std::optional<ops::AttentionRules> rules = attention_rules(stack, query, key);
  if (!rules) return false;
  // The kernel compares what a key gave with what all gave: both at the exponent of value.
  const at::Tensor output = times_power(scaled_impl(out).data(), exponent_of(out) - exponent_of(value),
                                        scaled_impl(out).data().scalar_type());
  const ops::AttentionOperands data = attention_operands(query, key, value);
  const ops::AttentionOperands to = {
      .query = at::empty_like(data.query), .key = at::empty_like(data.key), .value = at::empty_like(data.value)};
  const GradientSizes sizes = gradient_sizes(gradient, query, key, value, rules->scale);
  const auto power = [](int32_t exponent) { return std::exp2(static_cast<float>(-exponent)); };
  ops::attend_backward(scaled_impl(gradient).data(), data, {.output = output, .lse = argument(5)}, *rules,
                       {.to = to, .factors = {.q = power(sizes.q), .k = power(sizes.k), .v = power(sizes.v)}});
  Session& session = *operands.session();
  const int32_t scores = exponent_of(gradient) + exponent_of(value);
  const auto grad_query = encoded_as_written(to.query, scores - exponent_of(query) + sizes.q, session),
             grad_key = encoded_as_written(to.key, scores - exponent_of(key) + sizes.k, session),
             grad_value = encoded_as_written(to.value, exponent_of(gradient) + sizes.v, session);
  if (!grad_query || !grad_key || !grad_value) return false;
  finish_call(plan, operands, stack, make_result(*grad_query, operands), make_result(*grad_key, operands),
              make_result(*grad_value, operands));
  return true;
}

}  // namespace

void attend(const Plan& plan, Stack& stack) {
  if (!attend_forward(plan, stack)) execute(plan, stack);
}

void attend_backward(const Plan& plan, Stack& stack) {
  if (!attend_gradient(plan, stack)) execute(plan, stack);
}

}  // namespace plimsoll::autoscale
