#include "plimsoll/autoscale/powers.h"

#include <ATen/ops/square.h>

#include "plimsoll/autoscale/elementwise.h"
#include "plimsoll/autoscale/execute.h"
#include "plimsoll/autoscale/scaled_tensor_impl.h"

namespace plimsoll::autoscale {
namespace {

using torch::jit::Stack;

double power_degree(const c10::IValue& exponent) {
  return exponent.toScalar().isComplex() ? 1 : exponent.toScalar().to<double>();
}

// Squares of data, whose scale follows.
bool squares_data(const at::Tensor& x) {
  if (!is_scaled(x)) return false;
  const ScaledTensorImpl& impl = scaled_impl(x);
  const Settings& settings = impl.shared().session->settings();
  return settings.policy.method == Method::kAutoscale && !settings.counts_range && !impl.shared().wide && x.dim() > 0 &&
         !impl.scale().is_zero() && impl.data().scalar_type() == at::kHalf;
}

}  // namespace

bool is_spreading_power(const c10::IValue& exponent) {
  const double degree = power_degree(exponent);
  return degree < 0 || degree > 1;
}

bool are_one_tensor(const at::Tensor& a, const at::Tensor& b) {
  if (!is_scaled(a) || !is_scaled(b)) return false;
  const at::Tensor &x = scaled_impl(a).data(), &y = scaled_impl(b).data();
  return x.const_data_ptr() == y.const_data_ptr() && x.sizes() == y.sizes() && x.strides() == y.strides();
}

void raise(const Plan& plan, Stack& stack) {
  const at::Tensor x = stack[stack.size() - plan.arguments.size()].toTensor();
  if (!is_spreading_power(stack.back())) return run_in_blocks(plan, stack);
  if (plan.in_place || power_degree(stack.back()) != 2 || !squares_data(x)) return execute(plan, stack);
  const ScaledTensorImpl& impl = scaled_impl(x);
  impl.shared().session->count(plan.name, &CallCounts::wide);
  const BelowAutoscale below;
  const at::Tensor data = impl.data().to(at::kFloat).square_();
  torch::jit::drop(stack, plan.arguments.size());
  stack.emplace_back(make_scaled(data, options_like(x, power(impl.scale(), 2))));
}

}  // namespace plimsoll::autoscale
