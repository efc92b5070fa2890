#include "plimsoll/autoscale/several_scales_rules.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "plimsoll/autoscale/inspection.h"
#include "plimsoll/autoscale/moves.h"
#include "plimsoll/autoscale/one_scale.h"
#include "plimsoll/autoscale/several_scales.h"
#include "plimsoll/autoscale/storage.h"

namespace plimsoll::autoscale {
namespace {

using torch::jit::Stack;

struct ScalesCall {
  const Plan& plan;
  Stack& stack;
  void (*run)(const Plan&, Stack&);

  c10::IValue& argument(size_t i) const { return stack[stack.size() - plan.arguments.size() + i]; }
  at::Tensor tensor(size_t i) const { return argument(i).toTensor(); }
  // The call on what the scales leave over; its result has `scales`.
  void finish(const at::Tensor& scales) const {
    for (size_t i = 0; i < plan.arguments.size(); ++i)
      if (argument(i).isTensor()) argument(i) = without_scales(tensor(i));
    run_inspected(plan, stack, run);
    c10::IValue& result = stack[stack.size() - plan.results.size()];
    if (result.isTensor() && is_scaled(result.toTensor())) result = with_scales(result.toTensor(), scales);
  }
  void finish_with(const at::Tensor& result) const {
    torch::jit::drop(stack, plan.arguments.size());
    stack.emplace_back(result);
  }
};

// A rule does the call, or returns false where the scales do not allow for it.
using ScalesRule = bool (*)(const ScalesCall&);

at::Tensor scales_or_ones(const at::Tensor& x) {
  return has_scales(x) ? scaled_impl(x).scales() : at::ones(std::vector<int64_t>(x.sizes().size(), 1));
}

bool are_usable(const at::Tensor& scales) { return at::isfinite(scales).logical_and_(scales > 0).all().item<bool>(); }

// Functions of each element that are of degree 1 for factors above 0.
bool keep_scales(const ScalesCall& call) {
  if (!has_scales(call.tensor(0))) return false;
  call.finish(scaled_impl(call.tensor(0)).scales());
  return true;
}

// A cast that the data cannot stand in for is one of the value.
bool cast_value(const ScalesCall& call) {
  if (!casts(call.plan, call.stack) && !asks_for_plain(call.plan, call.stack)) return keep_scales(call);
  run_inspected(call.plan, call.stack, call.run);
  return true;
}

// relu's gradient: of its second operand the sign alone counts.
bool keep_scales_behind_relu(const ScalesCall& call) {
  if (call.argument(2).toScalar().to<double>() != 0) return false;
  const at::Tensor gradient = call.tensor(0);
  call.finish(has_scales(gradient) ? scaled_impl(gradient).scales() : at::Tensor());
  return true;
}

bool reads_sizes_alone(const ScalesCall& call) {
  run_inspected(call.plan, call.stack, call.run);
  return true;
}

// A scale for each element, or one along a whole dimension, as short as it can be said.
at::Tensor shortened(at::Tensor scales) {
  for (int64_t i = 0; i < scales.dim(); ++i)
    if (scales.stride(i) == 0) scales = scales.narrow(i, 0, std::min<int64_t>(1, scales.size(i)));
  return scales;
}

// The operator moves the scales as it moves the data.
c10::IValue moved_scales(const ScalesCall& call, const at::Tensor& scales) {
  Stack stack(call.stack.end() - static_cast<std::ptrdiff_t>(call.plan.arguments.size()), call.stack.end());
  stack.front() = scales;
  call.plan.run.callBoxed(stack);
  return stack.front();
}

bool swap_dimensions(const ScalesCall& call) {
  call.finish(moved_scales(call, scaled_impl(call.tensor(0)).scales()).toTensor());
  return true;
}

bool move_scales(const ScalesCall& call) {
  const at::Tensor x = call.tensor(0);
  if (!has_scales(x)) return false;
  const at::Tensor all = spread(scaled_impl(x).scales(), x.sizes()).expand(x.sizes());
  if (call.plan.name == "aten::as_strided") return false;
  if (call.plan.name.find("view") != std::string::npos || call.plan.name.find("reshape") != std::string::npos) {
    call.finish({});
    const at::Tensor result = call.stack.back().toTensor();
    call.stack.back() = with_scales(result, shortened(all.reshape(result.sizes())));
    return true;
  }
  const c10::IValue scales = moved_scales(call, all);
  if (scales.isTensor()) {
    call.finish(shortened(scales.toTensor()));
    return true;
  }
  call.argument(0) = without_scales(x);
  run_inspected(call.plan, call.stack, call.run);
  c10::List<at::Tensor> results;
  const std::vector<at::Tensor> pieces = call.stack.back().toTensorVector();
  for (size_t i = 0; i < pieces.size(); ++i)
    results.push_back(with_scales(pieces[i], shortened(scales.toTensorList().get(i))));
  call.stack.back() = std::move(results);
  return true;
}

// Times a number above 0: the data stay as they are.
bool multiply_by_number(const ScalesCall& call, const at::Tensor& x, double number) {
  const ScaledTensorImpl& impl = scaled_impl(x);
  int exponent = 0;
  const double mantissa = std::isfinite(number) ? 2 * std::frexp(number, &exponent) : 0;
  const at::Tensor scales = impl.scales() * mantissa;
  if (!are_usable(scales)) {
    call.finish(impl.scales());
    return true;
  }
  const SharedScale& shared = impl.shared();
  Scale scale = impl.scale();
  if (!scale.is_zero()) scale.exponent += exponent - 1;
  shared.session->count(call.plan.name, &CallCounts::storage);
  call.finish_with(with_scales(make_scaled(impl.data().clone(), {.scale = scale,
                                                                 .session = shared.session,
                                                                 .logical = x.scalar_type(),
                                                                 .wide = shared.wide,
                                                                 .gradient = shared.gradient}),
                               scales));
  return true;
}

bool is_number(const c10::IValue& value) {
  return !value.isTensor() || (value.toTensor().dim() == 0 && !is_scaled(value.toTensor()));
}

double number_in(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor().item<double>() : value.toScalar().to<double>();
}

// mul and div.
bool multiply_elements(const ScalesCall& call) {
  const bool divides = call.plan.name.starts_with("aten::div");
  const c10::IValue &first = call.argument(0), &second = call.argument(1);
  if (is_number(second))
    return multiply_by_number(call, first.toTensor(), divides ? 1 / number_in(second) : number_in(second));
  if (is_number(first) && !divides) return multiply_by_number(call, second.toTensor(), number_in(first));
  const at::Tensor a = first.toTensor(), b = second.toTensor();
  at::Tensor left = scales_or_ones(a), right = scales_or_ones(b);
  if (!can_broadcast(left, right)) {
    left = spread(left, a.sizes());
    right = spread(right, b.sizes());
  }
  const at::Tensor scales = divides ? left / right : left * right;
  if (!are_usable(scales)) return false;
  call.finish(scales);
  return true;
}

// mm and bmm. A scale along the dimension that is summed over is in each term another one.
bool multiply_matrices(const ScalesCall& call) {
  const at::Tensor left = scales_or_ones(call.tensor(0)), right = scales_or_ones(call.tensor(1));
  if (left.size(-1) != 1 || right.size(-2) != 1 || !can_broadcast(left, right)) return false;
  const at::Tensor scales = left * right;
  if (!are_usable(scales)) return false;
  call.finish(scales);
  return true;
}

// sum, mean, amax and amin over dimensions along which the scale is one.
bool reduce(const ScalesCall& call) {
  const at::Tensor x = call.tensor(0), scales = scaled_impl(x).scales();
  const std::vector<int64_t> dims = call.argument(1).isNone() ? std::vector<int64_t>() : call.argument(1).toIntVector();
  if (casts(call.plan, call.stack)) return false;
  const auto is_one = [&](int64_t dim) { return scales.size(dim) == 1; };
  if (dims.empty() || !std::all_of(dims.begin(), dims.end(), is_one)) return false;
  call.finish(call.argument(2).toBool() ? scales : scales.squeeze(dims));
  return true;
}

// add and sub: each element at the larger one of two scales.
bool add_elements(const ScalesCall& call) {
  if (is_number(call.argument(0)) || is_number(call.argument(1))) return false;
  if (!call.tensor(0).is_floating_point() || !call.tensor(1).is_floating_point()) return false;
  const std::shared_ptr<Session> session =
      scaled_impl(has_scales(call.tensor(0)) ? call.tensor(0) : call.tensor(1)).shared().session;
  const at::Tensor a = as_scaled(call.tensor(0), session), b = as_scaled(call.tensor(1), session);
  const ScaledTensorImpl &first = scaled_impl(a), &second = scaled_impl(b);
  at::Tensor left = scales_or_ones(a), right = scales_or_ones(b);
  if (first.scale().is_zero() || second.scale().is_zero()) return false;
  if (!can_broadcast(left, right)) {
    left = spread(left, a.sizes());
    right = spread(right, b.sizes());
  }
  const int32_t exponent = std::max(first.scale().exponent, second.scale().exponent);
  const auto at_common = [&](const at::Tensor& scales, const ScaledTensorImpl& x) {
    return times_power(scales, x.scale().exponent - exponent, at::kFloat);
  };
  const at::Tensor scales = at::maximum(at_common(left, first), at_common(right, second));
  if (!are_usable(scales)) return false;
  const std::vector<int64_t> sizes = at::infer_size(a.sizes(), b.sizes());
  const auto data_at = [&](const ScaledTensorImpl& x, const at::Tensor& own) {
    return x.data().to(at::kFloat) * spread(at_common(own, x) / scales, sizes);
  };
  const double alpha = number_in(call.argument(2)) * (call.plan.name.starts_with("aten::sub") ? -1 : 1);
  const at::Tensor total = data_at(first, left) + alpha * data_at(second, right);
  const bool wide = first.shared().wide || second.shared().wide;
  const Encoded encoded =
      encode({.data = total, .exponent = exponent}, *session, {.dtype = storage_dtype(*session, total.dim(), wide)});
  session->count(call.plan.name, &CallCounts::wide);
  call.finish_with(
      with_scales(make_scaled(encoded.data, {.scale = encoded.scale,
                                             .session = session,
                                             .logical = a.scalar_type(),
                                             .wide = wide,
                                             .gradient = first.shared().gradient || second.shared().gradient}),
                  scales));
  return true;
}

ScalesRule scales_rule_of(const Plan& plan) {
  static const std::unordered_map<std::string_view, ScalesRule> rules = {
      {"aten::clone", &keep_scales},
      {"aten::neg", &keep_scales},
      {"aten::abs", &keep_scales},
      {"aten::relu", &keep_scales},
      {"aten::_to_copy", &cast_value},
      {"aten::detach", &keep_scales},
      {"aten::alias", &keep_scales},
      {"aten::threshold_backward", &keep_scales_behind_relu},
      {"aten::zeros_like", &reads_sizes_alone},
      {"aten::ones_like", &reads_sizes_alone},
      {"aten::t", &swap_dimensions},
      {"aten::transpose.int", &swap_dimensions},
      {"aten::permute", &swap_dimensions},
      {"aten::_unsafe_view", &move_scales},
      {"aten::_reshape_copy", &move_scales},
      {"aten::flip", &move_scales},
      {"aten::roll", &move_scales},
      {"aten::repeat", &move_scales},
      {"aten::index_select", &move_scales},
      {"aten::index.Tensor", &move_scales},
      {"aten::gather", &move_scales},
      {"aten::mul.Tensor", &multiply_elements},
      {"aten::mul.Scalar", &multiply_elements},
      {"aten::div.Tensor", &multiply_elements},
      {"aten::div.Scalar", &multiply_elements},
      {"aten::mm", &multiply_matrices},
      {"aten::bmm", &multiply_matrices},
      {"aten::add.Tensor", &add_elements},
      {"aten::sub.Tensor", &add_elements},
      {"aten::sum.dim_IntList", &reduce},
      {"aten::mean.dim", &reduce},
      {"aten::amax", &reduce},
      {"aten::amin", &reduce},
  };
  if (plan.in_place) return nullptr;
  const auto found = rules.find(plan.name);
  if (found != rules.end()) return found->second;
  return plan.is_view ? &move_scales : nullptr;
}

bool any_of_last(const Stack& stack, size_t count) {
  return std::any_of(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end(), [](const c10::IValue& value) {
    if (value.isTensor()) return has_scales(value.toTensor());
    if (!value.isTensorList()) return false;
    const std::vector<at::Tensor> list = value.toTensorVector();
    return std::any_of(list.begin(), list.end(), &has_scales);
  });
}

}  // namespace

void run_with_scales(const Plan& plan, Stack& stack, void (*run)(const Plan&, Stack&)) {
  if (!any_has_scales() || !any_of_last(stack, plan.arguments.size())) return run_inspected(plan, stack, run);
  const ScalesCall call{plan, stack, run};
  const BelowAutoscale below;
  const ScalesRule rule = scales_rule_of(plan);
  if (rule == nullptr || !rule(call)) run_in_one_scale(plan, stack, run);
}

}  // namespace plimsoll::autoscale
