#include "plimsoll/autoscale/plan.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "plimsoll/autoscale/execute.h"
#include "plimsoll/autoscale/moves.h"
#include "plimsoll/autoscale/several_scales_rules.h"
#include "plimsoll/autoscale/variants.h"

namespace plimsoll::autoscale {
namespace {

ArgumentKind kind_of(const c10::Type& type) {
  const auto& plain = type.kind() == c10::TypeKind::OptionalType ? *type.containedType(0) : type;
  switch (plain.kind()) {
    case c10::TypeKind::TensorType:
      return ArgumentKind::kTensor;
    case c10::TypeKind::NumberType:
      return ArgumentKind::kNumber;
    case c10::TypeKind::ListType:
      if (plain.containedType(0)->kind() == c10::TypeKind::TensorType) return ArgumentKind::kTensors;
      if (plain.containedType(0)->kind() == c10::TypeKind::OptionalType) return ArgumentKind::kOptionalTensors;
      return ArgumentKind::kOther;
    default:
      return ArgumentKind::kOther;
  }
}

// Collectives write into what they are given, of which their schemas say nothing.
bool is_collective(const Plan& plan) { return plan.name.starts_with("c10d::"); }

// Running statistics, which a norm in training writes into.
bool is_written_unsaid(const Plan& plan, const c10::Argument& argument) {
  return plan.name == "aten::native_batch_norm" && argument.name().starts_with("running_");
}

bool holds_tensors(ArgumentKind kind) { return kind != ArgumentKind::kNumber && kind != ArgumentKind::kOther; }

// Use of a rule's n-th operand. Without a rule all are values.
Use use_of(const Plan& plan, size_t n) {
  if (plan.is_fallback()) return Use::kValue;
  const Rule& rule = *plan.rule;
  const ClassOfRules of_class = class_of(rule.kind);
  std::optional<Use> use = n == 0 ? std::optional(of_class.first) : of_class.rest;
  if (rule.operands.size() > 0) use = n < rule.operands.size() ? std::optional(rule.operands[n]) : std::nullopt;
  TORCH_CHECK(use, "autoscale: expected a rule with a use for each tensor of ", plan.run.schema());
  return *use;
}

// More uses than there are arguments or results would be meant for another operator.
void check_count(const char* what, size_t given, size_t most, const c10::FunctionSchema& schema) {
  TORCH_CHECK(given <= most, "autoscale: expected a rule of at most ", most, " ", what, " for ", schema, ", got ",
              given);
}

void plan_arguments(Plan& plan) {
  const c10::FunctionSchema& schema = plan.run.schema();
  size_t operands = 0, numbers = 0;
  for (const c10::Argument& argument : schema.arguments()) {
    ArgumentPlan row = {.kind = kind_of(*argument.type()), .written = is_written(argument)};
    if (holds_tensors(row.kind)) {
      row.written |= is_collective(plan);
      row.written_unsaid = is_written_unsaid(plan, argument);
      row.use = use_of(plan, operands++);
    } else if (row.kind == ArgumentKind::kNumber && !plan.is_fallback()) {
      if (numbers < plan.rule->numbers.size()) row.number = plan.rule->numbers[numbers];
      ++numbers;
    }
    if (argument.name() == "input_dtype") plan.input_dtype_argument = static_cast<int>(plan.arguments.size());
    if (argument.name() == "dtype") plan.dtype_argument = static_cast<int>(plan.arguments.size());
    plan.arguments.push_back(row);
  }
  if (plan.is_fallback()) return;
  check_count("operands", plan.rule->operands.size(), operands, schema);
  check_count("numbers", plan.rule->numbers.size(), numbers, schema);
  check_count("results", plan.rule->results.size(), schema.returns().size(), schema);
}

ResultScale scale_of_result(const Plan& plan, size_t n) {
  if (plan.is_fallback()) return ResultScale::kMeasured;
  const RowList<ResultScale>& given = plan.rule->results;
  if (given.size() == 0) return class_of(plan.rule->kind).result;
  return given[std::min(n, given.size() - 1)];
}

void plan_results(Plan& plan) {
  const c10::FunctionSchema& schema = plan.run.schema();
  for (const c10::Argument& result : schema.returns()) {
    ResultPlan row = {.scale = scale_of_result(plan, plan.results.size())};
    for (size_t i = 0; is_written(result) && i < schema.arguments().size(); ++i) {
      if (is_written(schema.arguments()[i]) && *schema.arguments()[i].alias_info() == *result.alias_info())
        row.written = static_cast<int>(i);
    }
    plan.results.push_back(row);
  }
}

// One that torch composes may return a copy (contiguous, reshape, to): its parts say which.
bool makes_view(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  if (schema.arguments().empty() || op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd))
    return false;
  const c10::Argument& self = schema.arguments().front();
  return self.alias_info() != nullptr && !self.alias_info()->isWrite();
}

bool is_composite(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  return !op.hasKernelForDispatchKey(DispatchKey::CPU) &&
         (op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
          op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd));
}

// The rule of one of this library's operators, which are there only when all of it is loaded.
const Rule* own_rule(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  if (!name.starts_with("plimsoll::")) return nullptr;
  const auto found = std::find_if(rules().begin(), rules().end(), [&](const Rule& rule) { return rule.op == name; });
  return found == rules().end() ? nullptr : &*found;
}

}  // namespace

Plan make_plan(const c10::OperatorHandle& op, const Rule* rule, const c10::OperatorHandle& run) {
  Plan plan{.called = op,
            .run = run,
            .name = c10::toString(op.operator_name()),
            .rule = rule,
            .in_place = rule != nullptr && op.operator_name() != run.operator_name()};
  const bool is_view = rule == nullptr ? makes_view(op) : rule->kind == RuleClass::kView;
  plan.is_composite = rule == nullptr && !is_view && is_composite(op);
  plan.kernel = is_view ? &run_view : &execute;
  if (rule == nullptr) {
    plan.scales = is_view ? &move_scales : nullptr;
  } else {
    if (rule->kernel != nullptr) plan.kernel = rule->kernel;
    if (plan.in_place && rule->in_place != nullptr) plan.kernel = rule->in_place;
    plan.scales = plan.in_place ? nullptr : rule->scales;
  }
  plan_arguments(plan);
  plan_results(plan);
  return plan;
}

std::optional<at::ScalarType> asked_dtype(const Plan& plan, const torch::jit::Stack& stack) {
  if (plan.dtype_argument < 0) return std::nullopt;
  const c10::IValue& dtype = stack[stack.size() - plan.arguments.size() + static_cast<size_t>(plan.dtype_argument)];
  return dtype.isInt() ? std::optional(dtype.toScalarType()) : std::nullopt;
}

bool casts(const Plan& plan, const torch::jit::Stack& stack) {
  const std::optional<at::ScalarType> dtype = asked_dtype(plan, stack);
  return dtype && *dtype != at::kFloat && *dtype != at::kDouble;
}

const Plan& plan_when_called(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static std::unordered_map<c10::OperatorName, std::unique_ptr<Plan>> plans;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Plan>& plan = plans[op.operator_name()];
  if (plan == nullptr) plan = std::make_unique<Plan>(make_plan(op, own_rule(op), op));
  return *plan;
}

Plan plan_on_values(const c10::OperatorHandle& op) {
  Plan plan = make_plan(op, nullptr, op);
  plan.counts_as_rule = true;
  return plan;
}

}  // namespace plimsoll::autoscale
