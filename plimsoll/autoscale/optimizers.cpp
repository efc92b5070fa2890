#include "plimsoll/autoscale/optimizers.h"

#include "plimsoll/autoscale/execute.h"

namespace plimsoll::autoscale {

using torch::jit::Stack;

void step_each(const Plan& plan, Stack& stack) {
  const Stack all = torch::jit::pop(stack, plan.arguments.size());
  const size_t parameters = all.front().toListRef().size();
  for (size_t i = 0; i < parameters; ++i) {
    for (const c10::IValue& value : all) {
      // Lists are of one tensor for each parameter, or empty.
      const bool listed = value.isTensorList() && !value.toListRef().empty();
      stack.push_back(listed ? c10::IValue(c10::List<at::Tensor>({value.toListRef()[i].toTensor()})) : value);
    }
    execute(plan, stack);
  }
}

}  // namespace plimsoll::autoscale
