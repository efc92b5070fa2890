// Hands the rules to torch's dispatcher.
#include "plimsoll/autoscale/registration.h"

#include <torch/library.h>

#include <deque>
#include <memory>
#include <mutex>
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
#include "plimsoll/autoscale/plan.h"
#include "plimsoll/autoscale/rule.h"
#include "plimsoll/autoscale/scaled_tensor_impl.h"
#include "plimsoll/autoscale/several_scales_rules.h"
#include "plimsoll/autoscale/sums.h"

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

class RuleKernel final : public c10::OperatorKernel {
 public:
  RuleKernel(Plan plan, Run run) : plan_(std::move(plan)), run_(run) {}

  void operator()(const OperatorHandle& op, DispatchKeySet, Stack* stack) {
    // A plain tensor that scaled ones are written into gets their values.
    if (plan_.in_place && !is_scaled((*stack)[stack->size() - plan_.arguments.size()].toTensor()))
      return run_with_scales(plan_when_called(op), *stack, &execute);
    run_with_scales(plan_, *stack, run_);
  }

 private:
  const Plan plan_;
  const Run run_;
};

// Operators that are more than a pass over their arguments' data.
Run run_of(std::string_view op) {
  static const std::unordered_map<std::string_view, Run> runs = {
      {"mm", &matmul},
      {"bmm", &matmul},
      {"addmm", &matmul},
      {"baddbmm", &matmul},
      {"clone", &clone},
      {"copy_", &copy_into},
      {"fill_.Scalar", &fill},
      {"zero_", &zero},
      {"_to_copy", &to_dtype},
      {"zeros_like", &zeros_like},
      {"ones_like", &ones_like},
      {"sum.dim_IntList", &sum_rows},
      {"native_layer_norm", &normalize},
      {"native_layer_norm_backward", &normalize_backward},
      {"_scaled_dot_product_flash_attention_for_cpu", &attend},
      {"_scaled_dot_product_flash_attention_for_cpu_backward", &attend_backward}};
  if (is_elementwise(op)) return &run_elementwise;
  if (op.starts_with("_fused_adam") || op.starts_with("_fused_sgd")) return &step_each;
  const auto found = runs.find(op);
  return found == runs.end() ? &execute : found->second;
}

std::optional<OperatorHandle> find(std::string_view name, std::string_view overload) {
  return c10::Dispatcher::singleton().findSchema({"aten::" + std::string(name), std::string(overload)});
}

void implement(torch::Library& library, const Rule& rule, const OperatorHandle& op, const OperatorHandle& run) {
  Plan plan = make_plan(op, &rule, run);
  const Run kernel_run = plan.in_place && has_blocked_twin(rule.op) ? &run_in_place : run_of(rule.op);
  auto kernel = std::make_unique<RuleKernel>(std::move(plan), kernel_run);
  library.impl(c10::toString(op.operator_name()).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, Fake, library) {
  static_assert(kScaledKey == c10::DispatchKey::Fake);
  for (const Rule& rule : rules()) {
    if (rule.op.find("::") != std::string_view::npos) continue;  // plan_when_called() finds it
    const size_t dot = std::min(rule.op.find('.'), rule.op.size());
    const std::string_view name = rule.op.substr(0, dot), overload = rule.op.substr(std::min(dot + 1, rule.op.size()));
    const std::optional<OperatorHandle> op = find(name, overload);
    if (!op) continue;  // another release of torch
    implement(library, rule, *op, *op);
    const std::optional<OperatorHandle> twin = find(std::string(name) + "_", overload);
    if (twin && twin->schema().arguments().size() == op->schema().arguments().size())
      implement(library, rule, *twin, *op);
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
