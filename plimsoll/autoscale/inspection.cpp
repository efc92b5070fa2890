#include "plimsoll/autoscale/inspection.h"

#include <memory>
#include <vector>

#include "plimsoll/autoscale/scaled_tensor_impl.h"

namespace plimsoll::autoscale {
namespace {

using torch::jit::Stack;

struct Seen {
  std::vector<Scale> scales;
  std::shared_ptr<Session> session;  // of the first

  void add(const at::Tensor& tensor) {
    if (!is_scaled(tensor)) return;
    const ScaledTensorImpl& impl = scaled_impl(tensor);
    scales.push_back(impl.scale());
    if (session == nullptr) session = impl.shared().session;
  }
};

// Facts about the scaled tensors among the last values of the stack.
Seen scaled_among(const Stack& stack, size_t count) {
  Seen seen;
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    if (stack[i].isTensor()) seen.add(stack[i].toTensor());
    if (stack[i].isTensorList())
      for (const at::Tensor& tensor : stack[i].toTensorList()) seen.add(tensor);
    if (stack[i].isOptionalTensorList())
      for (const std::optional<at::Tensor>& tensor : stack[i].toOptionalTensorList())
        if (tensor) seen.add(*tensor);
  }
  return seen;
}

}  // namespace

void run_inspected(const Plan& plan, Stack& stack) {
  if (!Session::any_inspected()) return plan.kernel(plan, stack);
  const Seen operands = scaled_among(stack, plan.arguments.size());
  plan.kernel(plan, stack);
  if (operands.session != nullptr)
    operands.session->note({plan.name, operands.scales, scaled_among(stack, plan.results.size()).scales});
}

}  // namespace plimsoll::autoscale
