#include "plimsoll/autoscale/optimizers.h"

#include "plimsoll/autoscale/block_update.h"
#include "plimsoll/autoscale/execute.h"
#include "plimsoll/autoscale/storage.h"
#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/kernels/sgd/sgd.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::autoscale {
namespace {

using torch::jit::Stack;

// Lists are of one tensor for each parameter, or empty.
bool is_listed(const c10::IValue& value) { return value.isTensorList() && !value.toListRef().empty(); }
at::Tensor tensor_in(const c10::IValue& list, size_t i) { return list.toListRef()[i].toTensor(); }

double number_of(const c10::IValue& value) {
  return value.isTensor() ? value_of(value.toTensor()).item<double>() : value.toDouble();
}

// A step of parameter i on (data, remainder) in one pass: values in FP32 are those of a block, which stays in the cache,
// and what the optimizer keeps becomes FP32 at exponent 0. False, and nothing is done, where the tensors do not lie alike
// in memories of their own, where the session rounds by chance, measures what is written, or counts what is lost, and
// where a maximum is kept or a GradScaler has part in the step.
using StepInOnePass = bool(const Stack& all, size_t i);

template <bool kDecoupled>
bool step_adam(const Stack& all, size_t i) {
  enum {
    kParameters,
    kGradients,
    kMoments1,
    kMoments2,
    kLargest2,
    kSteps,
    kLr,
    kBeta1,
    kBeta2,
    kDecay,
    kEps,
    kAmsgrad,
    kMaximize,
    kGradScale,
    kFoundInf
  };
  const at::Tensor parameter = tensor_in(all[kParameters], i), given = tensor_in(all[kGradients], i);
  if (all[kAmsgrad].toBool() || !all[kGradScale].isNone() || !all[kFoundInf].isNone() || !can_update_blocks(parameter))
    return false;
  at::Tensor moment1 = tensor_in(all[kMoments1], i), moment2 = tensor_in(all[kMoments2], i);
  const at::Tensor &weight = data_of(parameter), &gradient = data_of(given);
  if (!is_gradient_of(given, weight) || !is_state_of(moment1, weight) || !is_state_of(moment2, weight)) return false;
  moment1 = values_of_state(moment1);
  moment2 = values_of_state(moment2);
  const double decay = number_of(all[kDecay]);
  const kernels::AdamW step = {.grad_format = ops::format_of(gradient.scalar_type(), "autoscale"),
                               .lr = number_of(all[kLr]),
                               .beta1 = number_of(all[kBeta1]),
                               .beta2 = number_of(all[kBeta2]),
                               .eps = number_of(all[kEps]),
                               .weight_decay = kDecoupled ? decay : 0,
                               .l2 = kDecoupled ? 0 : decay,
                               .step = static_cast<int64_t>(number_of(tensor_in(all[kSteps], i))),
                               .grad_scale = factor_of(given) * (all[kMaximize].toBool() ? -1.0f : 1.0f)};
  update_blocks(parameter, [&](int64_t begin, int64_t count, float* values) {
    kernels::AdamW block = step;
    block.master = values;
    block.grad = at_element(gradient, begin);
    block.moment1 = at_element(moment1, begin);
    block.moment2 = at_element(moment2, begin);
    block.count = count;
    kernels::adamw(block);
  });
  return true;
}

bool step_sgd(const Stack& all, size_t i) {
  enum {
    kParameters,
    kGradients,
    kBuffers,
    kDecay,
    kMomentum,
    kLr,
    kDampening,
    kNesterov,
    kMaximize,
    kIsFirst,
    kGradScale,
    kFoundInf
  };
  const at::Tensor parameter = tensor_in(all[kParameters], i), given = tensor_in(all[kGradients], i);
  if (!all[kGradScale].isNone() || !all[kFoundInf].isNone() || !can_update_blocks(parameter)) return false;
  at::Tensor buffer = is_listed(all[kBuffers]) ? tensor_in(all[kBuffers], i) : at::Tensor();
  const at::Tensor &weight = data_of(parameter), &gradient = data_of(given);
  if (!is_gradient_of(given, weight) || (buffer.defined() && !is_state_of(buffer, weight))) return false;
  if (buffer.defined()) buffer = values_of_state(buffer);
  const kernels::Sgd step = {.grad_format = ops::format_of(gradient.scalar_type(), "autoscale"),
                             .is_first = all[kIsFirst].toBool(),
                             .nesterov = all[kNesterov].toBool(),
                             .lr = number_of(all[kLr]),
                             .momentum = number_of(all[kMomentum]),
                             .dampening = number_of(all[kDampening]),
                             .weight_decay = number_of(all[kDecay]),
                             .grad_scale = factor_of(given) * (all[kMaximize].toBool() ? -1.0f : 1.0f)};
  update_blocks(parameter, [&](int64_t begin, int64_t count, float* values) {
    kernels::Sgd block = step;
    block.weight = values;
    block.grad = at_element(gradient, begin);
    block.momentum_buffer = reinterpret_cast<float*>(at_element(buffer, begin));
    block.count = count;
    kernels::sgd(block);
  });
  return true;
}

void step_each(const Plan& plan, Stack& stack, StepInOnePass* step) {
  const Stack all = torch::jit::pop(stack, plan.arguments.size());
  const size_t parameters = all.front().toListRef().size();
  const auto step_in_one_pass = [&](size_t i) {
    const BelowAutoscale below;
    return step(all, i);
  };
  for (size_t i = 0; i < parameters; ++i) {
    if (step_in_one_pass(i)) {
      scaled_impl(tensor_in(all.front(), i)).shared().session->count(plan.name, &CallCounts::wide);
      continue;
    }
    for (const c10::IValue& value : all)
      stack.push_back(is_listed(value) ? c10::IValue(c10::List<at::Tensor>({tensor_in(value, i)})) : value);
    execute(plan, stack);
  }
}

}  // namespace

void step_fused_adam(const Plan& plan, Stack& stack) { step_each(plan, stack, &step_adam<false>); }
void step_fused_adamw(const Plan& plan, Stack& stack) { step_each(plan, stack, &step_adam<true>); }
void step_fused_sgd(const Plan& plan, Stack& stack) { step_each(plan, stack, &step_sgd); }

}  // namespace plimsoll::autoscale
