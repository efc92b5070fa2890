#include "plimsoll/autoscale/partly_homogeneous.h"

#include "plimsoll/autoscale/execute.h"

namespace plimsoll::autoscale {
namespace {

void execute_or_take_values(const Plan& plan, torch::jit::Stack& stack, bool follows) {
  if (follows) return execute(plan, stack);
  execute(plan_on_values(plan.run), stack);
}

}  // namespace

void take_vector_norm(const Plan& plan, torch::jit::Stack& stack) {
  const c10::Scalar order = stack[stack.size() - plan.arguments.size() + 1].toScalar();
  execute_or_take_values(plan, stack, order.isComplex() || order.to<double>() != 0);
}

void pool_averages(const Plan& plan, torch::jit::Stack& stack) {
  execute_or_take_values(plan, stack, stack.back().isNone());
}

}  // namespace plimsoll::autoscale
