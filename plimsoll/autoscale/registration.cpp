// Hands the rules to torch's dispatcher.
#include "plimsoll/autoscale/registration.h"

#include <torch/csrc/jit/frontend/function_schema_parser.h>
#include <torch/library.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "plimsoll/autoscale/out_call.h"
#include "plimsoll/autoscale/plan.h"
#include "plimsoll/autoscale/rule.h"
#include "plimsoll/autoscale/scaled_tensor_impl.h"
#include "plimsoll/autoscale/several_scales_rules.h"
#include "plimsoll/autoscale/variants.h"

namespace plimsoll::autoscale {
namespace {

using c10::DispatchKeySet;
using c10::OperatorHandle;
using torch::jit::Stack;

void fallback(const OperatorHandle& op, Stack* stack) {
  const Plan& plan = plan_when_called(op);
  TORCH_CHECK(!op.hasTag(at::Tag::inplace_view), plan.name,
              ": expected an operator that leaves the shape of a scaled tensor, got one that changes it in place");
  // A composite's parts come here one by one.
  if (plan.is_composite) return op.redispatchBoxed(DispatchKeySet(c10::DispatchKey::CPU), stack);
  run_with_scales(plan, *stack);
}

// An operator with a rule, and its variant that writes into the first argument.
class RuleKernel final : public c10::OperatorKernel {
 public:
  explicit RuleKernel(Plan plan) : plan_(std::move(plan)), on_values_(plan_on_values(plan_.called)) {}

  void operator()(const OperatorHandle&, DispatchKeySet, Stack* stack) {
    // A plain tensor that scaled ones are written into gets their values.
    const bool into_plain = plan_.in_place && !is_scaled((*stack)[stack->size() - plan_.arguments.size()].toTensor());
    run_with_scales(into_plain ? on_values_ : plan_, *stack);
  }

 private:
  const Plan plan_, on_values_;
};

// A variant that writes into tensors of the caller's.
class OutKernel final : public c10::OperatorKernel {
 public:
  // in_place: the variant that writes into the first argument, if there is one.
  OutKernel(const OperatorHandle& variant, const Plan& functional, std::optional<Plan> in_place)
      : on_values_(plan_on_values(variant)), functional_(functional), in_place_(std::move(in_place)) {}

  void operator()(const OperatorHandle&, DispatchKeySet, Stack* stack) {
    const auto outs = stack->end() - static_cast<std::ptrdiff_t>(functional_.results.size());
    // Plain tensors get the values.
    if (std::none_of(outs, stack->end(), [](const c10::IValue& out) { return is_scaled(out.toTensor()); }))
      return run_with_scales(on_values_, *stack);
    if (!writes_first(*stack)) return run_into(functional_, *stack);
    stack->pop_back();
    run_with_scales(*in_place_, *stack);
  }

 private:
  // Whether the first argument is what is written: then it is rounded as by the variant in place.
  bool writes_first(const Stack& stack) const {
    const size_t first = stack.size() - on_values_.arguments.size();
    return in_place_ && stack[first].isTensor() && stack[first].toTensor().is_same(stack.back().toTensor());
  }

  const Plan on_values_, functional_;
  const std::optional<Plan> in_place_;
};

// op: library::name, or library::name.overload.
std::optional<OperatorHandle> find(const std::string& op) {
  return c10::Dispatcher::singleton().findSchema(torch::jit::parseName(op));
}

template <class Kernel, class... Arguments>
void implement(torch::Library& library, const OperatorHandle& op, Arguments&&... arguments) {
  library.impl(
      c10::toString(op.operator_name()).c_str(),
      torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(std::forward<Arguments>(arguments)...)));
}

void implement_all(torch::Library& library, const Rule& rule, const OperatorHandle& op) {
  const Plan functional = make_plan(op, &rule, op);
  implement<RuleKernel>(library, op, functional);
  const Variants variants = variants_of(op);
  std::optional<Plan> in_place;
  for (const OperatorHandle& variant : variants.in_place)
    implement<RuleKernel>(library, variant, in_place.emplace(make_plan(variant, &rule, op)));
  for (const OperatorHandle& variant : variants.out)
    implement<OutKernel>(library, variant, variant, functional, in_place);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PLIMSOLL_FREE_KEY, library) {
  for (const Rule& rule : rules()) {
    if (rule.op.find("::") != std::string_view::npos) continue;  // plan_when_called() finds it
    // An operator that is not found is one of another release of torch.
    if (const std::optional<OperatorHandle> op = find("aten::" + std::string(rule.op)))
      implement_all(library, rule, *op);
  }
}

void add_rule(const std::string& op, const Rule& rule) {
  // Libraries and rules live as long as the process, because the dispatcher and plans refer to them.
  static std::deque<torch::Library> libraries;
  static std::deque<Rule> added;
  static std::mutex mutex;
  TORCH_CHECK(op.find("::") != std::string::npos, "add_rule: expected library::name, got ", op);
  const std::optional<OperatorHandle> handle = find(op);
  TORCH_CHECK(handle, "add_rule: expected an operator that torch knows, got ", op);
  const std::lock_guard lock(mutex);
  Plan plan = make_plan(*handle, &added.emplace_back(rule), *handle);
  libraries
      .emplace_back(torch::Library::IMPL, std::string(*handle->operator_name().getNamespace()), kScaledKey, __FILE__,
                    __LINE__)
      .impl(c10::toString(handle->operator_name()).c_str(),
            torch::CppFunction::makeFromBoxedFunctor(std::make_unique<RuleKernel>(std::move(plan))));
}

void check_registered() {
  const std::optional<OperatorHandle> op = find("aten::mm");
  TORCH_CHECK(op && op->hasKernelForDispatchKey(kScaledKey),
              "autoscale: expected the rules to be registered with torch");
}

TORCH_LIBRARY_IMPL(_, PLIMSOLL_FREE_KEY, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace plimsoll::autoscale
