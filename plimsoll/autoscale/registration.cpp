// Hands the rules to torch's dispatcher.
#include "plimsoll/autoscale/registration.h"

#include <torch/library.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "plimsoll/autoscale/attention.h"
#include "plimsoll/autoscale/elementwise.h"
#include "plimsoll/autoscale/execute.h"
#include "plimsoll/autoscale/in_place.h"
#include "plimsoll/autoscale/inspection.h"
#include "plimsoll/autoscale/matmul.h"
#include "plimsoll/autoscale/moves.h"
#include "plimsoll/autoscale/norms.h"
#include "plimsoll/autoscale/optimizers.h"
#include "plimsoll/autoscale/out_call.h"
#include "plimsoll/autoscale/plan.h"
#include "plimsoll/autoscale/rule.h"
#include "plimsoll/autoscale/scaled_tensor_impl.h"
#include "plimsoll/autoscale/several_scales_rules.h"
#include "plimsoll/autoscale/sums.h"
#include "plimsoll/autoscale/variants.h"

namespace plimsoll::autoscale {
namespace {

using c10::DispatchKeySet;
using c10::OperatorHandle;
using torch::jit::Stack;
using Run = void (*)(const Plan&, Stack&);

void fallback(const OperatorHandle& op, Stack* stack) {
  const Plan& plan = plan_when_called(op);
  if (is_view_in_place(plan)) return run_inspected(plan, *stack, &run_view_in_place);
  TORCH_CHECK(!op.hasTag(at::Tag::inplace_view), plan.name,
              ": expected an operator that leaves the shape of a scaled tensor, got one that changes it in place");
  if (plan.is_view) return run_with_scales(plan, *stack, &run_view);
  // Its parts come here one by one.
  if (plan.is_composite) return op.redispatchBoxed(DispatchKeySet(c10::DispatchKey::CPU), stack);
  run_with_scales(plan, *stack, &execute);
}

// Operators that are more than a pass over their arguments' data.
Run run_of(const Plan& plan) {
  const std::string_view op = plan.rule->op;
  static const std::unordered_map<std::string_view, Run> runs = {
      {"mm", &matmul},
      {"bmm", &matmul},
      {"addmm", &matmul},
      {"baddbmm", &matmul},
      {"clone", &clone},
      {"copy_", &copy_into},
      {"fill_.Scalar", &fill},
      {"fill_.Tensor", &fill},
      {"zero_", &zero},
      {"_to_copy", &to_dtype},
      {"zeros_like", &zeros_like},
      {"ones_like", &ones_like},
      {"sum.dim_IntList", &sum_rows},
      {"native_layer_norm", &normalize},
      {"native_layer_norm_backward", &normalize_backward},
      {"_scaled_dot_product_flash_attention_for_cpu", &attend},
      {"_scaled_dot_product_flash_attention_for_cpu_backward", &attend_backward}};
  if (plan.in_place && has_blocked_twin(op)) return &run_in_place;
  if (is_elementwise(op)) return &run_elementwise;
  if (op.starts_with("_fused_adam") || op.starts_with("_fused_sgd")) return &step_each;
  const auto found = runs.find(op);
  return found == runs.end() ? &execute : found->second;
}

// An operator with a rule, and its variant that writes into the first argument.
class RuleKernel final : public c10::OperatorKernel {
 public:
  RuleKernel(Plan plan, Run run) : plan_(std::move(plan)), on_values_(plan_on_values(plan_.called)), run_(run) {}

  void operator()(const OperatorHandle&, DispatchKeySet, Stack* stack) {
    // A plain tensor that scaled ones are written into gets their values.
    const bool into_plain = plan_.in_place && !is_scaled((*stack)[stack->size() - plan_.arguments.size()].toTensor());
    run_with_scales(into_plain ? on_values_ : plan_, *stack, into_plain ? &execute : run_);
  }

 private:
  const Plan plan_, on_values_;
  const Run run_;
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
      return run_with_scales(on_values_, *stack, &execute);
    if (!writes_first(*stack)) return run_into(functional_, *stack, run_of(functional_));
    stack->pop_back();
    run_with_scales(*in_place_, *stack, run_of(*in_place_));
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

std::optional<OperatorHandle> find(std::string_view name, std::string_view overload) {
  return c10::Dispatcher::singleton().findSchema({"aten::" + std::string(name), std::string(overload)});
}

template <class Kernel, class... Arguments>
void implement(torch::Library& library, const OperatorHandle& op, Arguments&&... arguments) {
  library.impl(
      c10::toString(op.operator_name()).c_str(),
      torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(std::forward<Arguments>(arguments)...)));
}

void implement_all(torch::Library& library, const Rule& rule, const OperatorHandle& op) {
  const auto implement_plan = [&](const Plan& plan) {
    implement<RuleKernel>(library, plan.called, plan, run_of(plan));
  };
  const Plan functional = make_plan(op, &rule, op);
  implement_plan(functional);
  const Variants variants = variants_of(op);
  std::optional<Plan> in_place;
  for (const OperatorHandle& variant : variants.in_place)
    implement_plan(in_place.emplace(make_plan(variant, &rule, op)));
  for (const OperatorHandle& variant : variants.out)
    implement<OutKernel>(library, variant, variant, functional, in_place);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, Fake, library) {
  static_assert(kScaledKey == c10::DispatchKey::Fake);
  for (const Rule& rule : rules()) {
    if (rule.op.find("::") != std::string_view::npos) continue;  // plan_when_called() finds it
    const size_t dot = std::min(rule.op.find('.'), rule.op.size());
    const std::string_view name = rule.op.substr(0, dot), overload = rule.op.substr(std::min(dot + 1, rule.op.size()));
    // An operator that is not found is one of another release of torch.
    if (const std::optional<OperatorHandle> op = find(name, overload)) implement_all(library, rule, *op);
  }
}

void add_rule(const std::string& op, const Rule& rule) {
  // What the dispatcher and plans refer to lives as long as the process.
  static std::deque<torch::Library> libraries;
  static std::deque<Rule> added;
  static std::mutex mutex;
  const size_t colons = op.find("::"), dot = std::min(op.find('.', colons), op.size());
  TORCH_CHECK(colons != std::string::npos, "add_rule: expected library::name, got ", op);
  const std::string overload = op.substr(std::min(dot + 1, op.size()));
  const OperatorHandle handle =
      c10::Dispatcher::singleton().findSchemaOrThrow(op.substr(0, dot).c_str(), overload.c_str());
  const std::lock_guard lock(mutex);
  Plan plan = make_plan(handle, &added.emplace_back(rule), handle);
  libraries.emplace_back(torch::Library::IMPL, op.substr(0, colons), kScaledKey, __FILE__, __LINE__)
      .impl(c10::toString(handle.operator_name()).c_str(),
            torch::CppFunction::makeFromBoxedFunctor(std::make_unique<RuleKernel>(std::move(plan), &execute)));
}

void check_registered() {
  const std::optional<OperatorHandle> op = find("mm", "");
  TORCH_CHECK(op && op->hasKernelForDispatchKey(kScaledKey),
              "autoscale: expected the rules to be registered with torch");
}

TORCH_LIBRARY_IMPL(_, Fake, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace plimsoll::autoscale
