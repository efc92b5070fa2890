#include "plimsoll/autoscale/optimizers.h"

#include <optional>

#include "plimsoll/autoscale/adamw.h"
#include "plimsoll/autoscale/execute.h"
#include "plimsoll/autoscale/scaled_tensor_impl.h"
#include "plimsoll/autoscale/sgd.h"
#include "plimsoll/autoscale/storage.h"

namespace plimsoll::autoscale {
namespace {

using torch::jit::Stack;

// Lists are of one tensor for each parameter, or empty.
bool is_listed(const c10::IValue& value) { return value.isTensorList() && !value.toListRef().empty(); }

double number_of(const c10::IValue& value) {
  return value.isTensor() ? value_of(value.toTensor()).item<double>() : value.toDouble();
}

// The step of _fused_adamw_ or _fused_adam_; nothing if it keeps a maximum or a GradScaler has part in it.
std::optional<AdamWStep> adamw_step(const Plan& plan, const Stack& all, size_t i) {
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
  if (!plan.name.starts_with("aten::_fused_adam") || all[kAmsgrad].toBool() || !all[kGradScale].isNone() ||
      !all[kFoundInf].isNone())
    return std::nullopt;
  const double decay = number_of(all[kDecay]);
  const bool decoupled = plan.name.starts_with("aten::_fused_adamw_");
  const auto tensor = [&](size_t list) { return all[list].toListRef()[i].toTensor(); };
  return AdamWStep{.parameter = tensor(kParameters),
                   .gradient = tensor(kGradients),
                   .moment1 = tensor(kMoments1),
                   .moment2 = tensor(kMoments2),
                   .lr = number_of(all[kLr]),
                   .beta1 = number_of(all[kBeta1]),
                   .beta2 = number_of(all[kBeta2]),
                   .weight_decay = decoupled ? decay : 0,
                   .eps = number_of(all[kEps]),
                   .l2 = decoupled ? 0 : decay,
                   .step = static_cast<int64_t>(number_of(tensor(kSteps))),
                   .maximize = all[kMaximize].toBool()};
}

// The step of _fused_sgd_; nothing if a GradScaler has part in it.
std::optional<SgdStep> sgd_step(const Plan& plan, const Stack& all, size_t i) {
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
  if (!plan.name.starts_with("aten::_fused_sgd_") || !all[kGradScale].isNone() || !all[kFoundInf].isNone())
    return std::nullopt;
  const auto tensor = [&](size_t list) { return all[list].toListRef()[i].toTensor(); };
  return SgdStep{.parameter = tensor(kParameters),
                 .gradient = tensor(kGradients),
                 .momentum_buffer = is_listed(all[kBuffers]) ? tensor(kBuffers) : at::Tensor(),
                 .lr = number_of(all[kLr]),
                 .momentum = number_of(all[kMomentum]),
                 .dampening = number_of(all[kDampening]),
                 .weight_decay = number_of(all[kDecay]),
                 .nesterov = all[kNesterov].toBool(),
                 .maximize = all[kMaximize].toBool(),
                 .is_first = all[kIsFirst].toBool()};
}

bool step_in_one_pass(const Plan& plan, const Stack& all, size_t i) {
  const BelowAutoscale below;
  const std::optional<AdamWStep> adamw = adamw_step(plan, all, i);
  const std::optional<SgdStep> sgd = sgd_step(plan, all, i);
  if (!(adamw && step_adamw(*adamw)) && !(sgd && step_sgd(*sgd))) return false;
  const at::Tensor& parameter = adamw ? adamw->parameter : sgd->parameter;
  scaled_impl(parameter).shared().session->count(plan.name, &CallCounts::wide);
  return true;
}

}  // namespace

void step_each(const Plan& plan, Stack& stack) {
  const Stack all = torch::jit::pop(stack, plan.arguments.size());
  const size_t parameters = all.front().toListRef().size();
  for (size_t i = 0; i < parameters; ++i) {
    if (step_in_one_pass(plan, all, i)) continue;
    for (const c10::IValue& value : all)
      stack.push_back(is_listed(value) ? c10::IValue(c10::List<at::Tensor>({value.toListRef()[i].toTensor()})) : value);
    execute(plan, stack);
  }
}

}  // namespace plimsoll::autoscale
