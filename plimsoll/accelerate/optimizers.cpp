// The fused Adam and AdamW of parameters in 16 bits: all tensors of a call, or none.
#include <cstdint>
#include <vector>

#include "plimsoll/accelerate/arguments.h"
#include "plimsoll/accelerate/operators.h"
#include "plimsoll/accelerate/pass.h"
#include "plimsoll/kernels/adam16/adam16.h"

namespace plimsoll::acceleration {
namespace {

// self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize,
// grad_scale, found_inf; the first six are lists. Nothing is returned.
constexpr size_t kAdamArguments = 15;

struct Parameter {
  const at::Tensor &weight, &grad, &moment1, &moment2;
  double step;
};

Outcome judge_parameter(const Parameter& each, at::ScalarType dtype) {
  if (!of_one_kind(each.weight, each.grad, each.moment1, each.moment2) || each.weight.scalar_type() != dtype)
    return Outcome::kDtype;
  for (const at::Tensor* other : {&each.grad, &each.moment1, &each.moment2}) {
    if (!other->sizes().equals(each.weight.sizes())) return Outcome::kShape;
    if (!other->is_contiguous()) return Outcome::kStrides;
  }
  return each.weight.is_contiguous() ? Outcome::kReplaced : Outcome::kStrides;
}

// The parameters of the call; kReplaced if our kernel takes all of them.
Outcome parameters_of(const ops::CallStack& stack, std::vector<Parameter>& parameters) {
  const auto list = [&](size_t place) { return argument(stack, kAdamArguments, place).toListRef(); };
  const auto weights = list(0), grads = list(1), first = list(2), second = list(3), steps = list(5);
  const size_t count = weights.size();
  if (count == 0 || !list(4).empty() || grads.size() != count || first.size() != count || second.size() != count ||
      steps.size() != count)
    return Outcome::kShape;
  const at::ScalarType dtype = weights[0].toTensor().scalar_type();
  if (dtype != at::kBFloat16 && dtype != at::kHalf) return Outcome::kDtype;
  parameters.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const at::Tensor& step = steps[i].toTensor();
    if (!has_values(step) || step.scalar_type() != at::kFloat) return Outcome::kDtype;
    if (step.numel() != 1) return Outcome::kShape;
    const double number = double{*step.const_data_ptr<float>()};
    if (!(number >= 1)) return Outcome::kShape;
    parameters.push_back(
        {weights[i].toTensor(), grads[i].toTensor(), first[i].toTensor(), second[i].toTensor(), number});
    const Outcome outcome = judge_parameter(parameters.back(), dtype);
    if (outcome != Outcome::kReplaced) return outcome;
  }
  return Outcome::kReplaced;
}

// lr: a number, or a tensor with one, which torch reads, too.
bool read_rate(const c10::IValue& value, double& rate) {
  if (!value.isTensor()) {
    rate = value.toDouble();
    return true;
  }
  const at::Tensor& x = value.toTensor();
  if (!has_values(x) || x.scalar_type() != at::kFloat || x.numel() != 1) return false;
  rate = double{*x.const_data_ptr<float>()};
  return true;
}

enum class Decay : uint8_t { kDecoupled, kL2 };

template <Decay kDecay>
Outcome fused_adam(ops::CallStack& stack) {
  const auto number = [&](size_t place) { return argument(stack, kAdamArguments, place).toDouble(); };
  std::vector<Parameter> parameters;
  if (const Outcome outcome = parameters_of(stack, parameters); outcome != Outcome::kReplaced) return outcome;
  // AMSGrad keeps a maximum; a scale would be taken from the gradients where they stand.
  if (argument(stack, kAdamArguments, 11).toBool() || optional_tensor(stack, kAdamArguments, 13) ||
      optional_tensor(stack, kAdamArguments, 14))
    return Outcome::kShape;
  double rate = 0;
  if (!read_rate(argument(stack, kAdamArguments, 6), rate)) return Outcome::kDtype;
  int64_t elements = 0;
  for (const Parameter& each : parameters) elements += each.weight.numel();
  // Our cost of one more tensor is above torch's.
  const int64_t of_a_tensor = elements / static_cast<int64_t>(parameters.size());
  const Outcome outcome =
      choose({Pass::kFusedAdam, format_of(parameters.front().weight), of_a_tensor}, processor(runtime::isa()));
  if (outcome != Outcome::kReplaced) return outcome;
  for (const Parameter& each : parameters) {
    kernels::adam16({.format = format_of(each.weight),
                     .weight = each.weight.mutable_data_ptr(),
                     .grad = each.grad.const_data_ptr(),
                     .moment1 = each.moment1.mutable_data_ptr(),
                     .moment2 = each.moment2.mutable_data_ptr(),
                     .count = each.weight.numel(),
                     .lr = rate,
                     .beta1 = number(7),
                     .beta2 = number(8),
                     .eps = number(10),
                     .weight_decay = kDecay == Decay::kDecoupled ? number(9) : 0,
                     .l2 = kDecay == Decay::kL2 ? number(9) : 0,
                     .maximize = argument(stack, kAdamArguments, 12).toBool(),
                     .step = each.step});
  }
  replace_arguments(stack, kAdamArguments);
  return Outcome::kReplaced;
}

}  // namespace

std::vector<Variant> optimizer_variants() {
  constexpr auto kAdam = fused_adam<Decay::kL2>, kAdamW = fused_adam<Decay::kDecoupled>;
  return {{"_fused_adam_", Operator::kFusedAdam, kAdam},
          {"_fused_adam_.tensor_lr", Operator::kFusedAdam, kAdam},
          {"_fused_adamw_", Operator::kFusedAdam, kAdamW},
          {"_fused_adamw_.tensor_lr", Operator::kFusedAdam, kAdamW}};
}

}  // namespace plimsoll::acceleration
