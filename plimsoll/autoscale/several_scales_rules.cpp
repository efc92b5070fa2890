#include "plimsoll/autoscale/several_scales_rules.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "plimsoll/autoscale/inspection.h"
#include "plimsoll/autoscale/moves.h"
#include "plimsoll/autoscale/one_scale.h"
#include "plimsoll/autoscale/several_scales.h"
#include "plimsoll/autoscale/storage.h"

namespace plimsoll::autoscale {

using torch::jit::Stack;

struct ScalesCall {
  const Plan& plan;
  Stack& stack;

  c10::IValue& argument(size_t i) const { return stack[stack.size() - plan.arguments.size() + i]; }
  at::Tensor tensor(size_t i) const { return argument(i).toTensor(); }
  // The call on what the scales leave over; its result has `scales`.
  void finish(const at::Tensor& scales) const {
    for (size_t i = 0; i < plan.arguments.size(); ++i)
      if (argument(i).isTensor()) argument(i) = without_scales(tensor(i));
    run_inspected(plan, stack);
    c10::IValue& result = stack[stack.size() - plan.results.size()];
    if (result.isTensor() && is_scaled(result.toTensor())) result = with_scales(result.toTensor(), scales);
  }
  void finish_with(const at::Tensor& result) const {
    torch::jit::drop(stack, plan.arguments.size());
    stack.emplace_back(result);
  }
};

namespace {

at::Tensor scales_or_ones(const at::Tensor& x) {
  return has_scales(x) ? scaled_impl(x).scales() : at::ones(std::vector<int64_t>(x.sizes().size(), 1));
}

bool are_usable(const at::Tensor& scales) { return at::isfinite(scales).logical_and_(scales > 0).all().item<bool>(); }

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
  Scale scale = impl.scale();
  if (!scale.is_zero()) scale.exponent += exponent - 1;
  impl.shared().session->count(call.plan.name, &CallCounts::storage);
  call.finish_with(with_scales(make_scaled(impl.data().clone(), options_like(x, scale)), scales));
  return true;
}

bool is_number(const c10::IValue& value) {
  return !value.isTensor() || (value.toTensor().dim() == 0 && !is_scaled(value.toTensor()));
}

double number_in(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor().item<double>() : value.toScalar().to<double>();
}

// The scale of each element of a tensor of several.
at::Tensor scales_of_elements(const at::Tensor& x) {
  return spread(scaled_impl(x).scales(), x.sizes()).expand(x.sizes());
}

bool multiply_or_divide(const ScalesCall& call, bool divides) {
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

bool add_with(const ScalesCall& call, double sign) {
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
  const double alpha = sign * number_in(call.argument(2));
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

bool any_of_last(const Stack& stack, size_t count) {
  return std::any_of(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end(), [](const c10::IValue& value) {
    if (value.isTensor()) return has_scales(value.toTensor());
    if (!value.isTensorList()) return false;
    const std::vector<at::Tensor> list = value.toTensorVector();
    return std::any_of(list.begin(), list.end(), &has_scales);
  });
}

}  // namespace

bool keep_scales(const ScalesCall& call) {
  if (!has_scales(call.tensor(0))) return false;
  call.finish(scaled_impl(call.tensor(0)).scales());
  return true;
}

bool keep_scales_or_cast(const ScalesCall& call) {
  if (!casts(call.plan, call.stack) && !asks_for_plain(call.plan, call.stack)) return keep_scales(call);
  run_inspected(call.plan, call.stack);
  return true;
}

bool keep_scales_behind_relu(const ScalesCall& call) {
  if (call.argument(2).toScalar().to<double>() != 0) return false;
  const at::Tensor gradient = call.tensor(0);
  call.finish(has_scales(gradient) ? scaled_impl(gradient).scales() : at::Tensor());
  return true;
}

bool ignore_scales(const ScalesCall& call) {
  run_inspected(call.plan, call.stack);
  return true;
}

bool swap_dimensions(const ScalesCall& call) {
  call.finish(moved_scales(call, scaled_impl(call.tensor(0)).scales()).toTensor());
  return true;
}

bool move_scales(const ScalesCall& call) {
  const at::Tensor x = call.tensor(0);
  if (!has_scales(x)) return false;
  const c10::IValue scales = moved_scales(call, scales_of_elements(x));
  if (scales.isTensor()) {
    call.finish(shortened(scales.toTensor()));
    return true;
  }
  call.argument(0) = without_scales(x);
  run_inspected(call.plan, call.stack);
  c10::List<at::Tensor> results;
  const std::vector<at::Tensor> pieces = call.stack.back().toTensorVector();
  for (size_t i = 0; i < pieces.size(); ++i)
    results.push_back(with_scales(pieces[i], shortened(scales.toTensorList().get(i))));
  call.stack.back() = std::move(results);
  return true;
}

bool reshape_scales(const ScalesCall& call) {
  const at::Tensor x = call.tensor(0);
  if (!has_scales(x)) return false;
  const at::Tensor all = scales_of_elements(x);
  call.finish({});
  const at::Tensor result = call.stack.back().toTensor();
  call.stack.back() = with_scales(result, shortened(all.reshape(result.sizes())));
  return true;
}

bool multiply_scales(const ScalesCall& call) { return multiply_or_divide(call, false); }
bool divide_scales(const ScalesCall& call) { return multiply_or_divide(call, true); }

bool multiply_matrices(const ScalesCall& call) {
  const at::Tensor left = scales_or_ones(call.tensor(0)), right = scales_or_ones(call.tensor(1));
  if (left.size(-1) != 1 || right.size(-2) != 1 || !can_broadcast(left, right)) return false;
  const at::Tensor scales = left * right;
  if (!are_usable(scales)) return false;
  call.finish(scales);
  return true;
}

bool reduce(const ScalesCall& call) {
  const at::Tensor x = call.tensor(0), scales = scaled_impl(x).scales();
  const std::vector<int64_t> dims = call.argument(1).isNone() ? std::vector<int64_t>() : call.argument(1).toIntVector();
  if (casts(call.plan, call.stack)) return false;
  const auto is_one = [&](int64_t dim) { return scales.size(dim) == 1; };
  if (dims.empty() || !std::all_of(dims.begin(), dims.end(), is_one)) return false;
  call.finish(call.argument(2).toBool() ? scales : scales.squeeze(dims));
  return true;
}

bool add_elements(const ScalesCall& call) { return add_with(call, 1); }
bool subtract_elements(const ScalesCall& call) { return add_with(call, -1); }

void run_with_scales(const Plan& plan, Stack& stack) {
  if (!any_has_scales() || !any_of_last(stack, plan.arguments.size())) return run_inspected(plan, stack);
  const BelowAutoscale below;
  if (plan.scales == nullptr || !plan.scales({plan, stack})) run_in_one_scale(plan, stack);
}

}  // namespace plimsoll::autoscale
