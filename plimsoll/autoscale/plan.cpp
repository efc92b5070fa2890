#include "plimsoll/autoscale/plan.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>

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

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// Collectives write into what they are given, of which their schemas say nothing.
bool is_collective(const Plan& plan) { return plan.name.starts_with("c10d::"); }

bool holds_tensors(ArgumentKind kind) { return kind != ArgumentKind::kNumber && kind != ArgumentKind::kOther; }

// Letters that mean nothing, and more than there are arguments or results, would pass for something else.
void check_modes(std::string_view given, std::string_view known, size_t most, const c10::FunctionSchema& schema) {
  TORCH_CHECK(given.size() <= most && given.find_first_not_of(known) == std::string_view::npos,
              "autoscale: expected a rule of at most ", most, " letters of ", known, " for ", schema, ", got ", given);
}

char mode_at(std::string_view modes, size_t& next, char otherwise) {
  return next < modes.size() ? modes[next++] : otherwise;
}

void plan_arguments(Plan& plan) {
  size_t operand = 0, number = 0;
  for (const c10::Argument& argument : plan.run.schema().arguments()) {
    ArgumentPlan row = {.kind = kind_of(*argument.type()), .written = is_written(argument)};
    if (holds_tensors(row.kind)) {
      row.written |= is_collective(plan);
      row.mode = plan.is_fallback() ? 'v' : mode_at(plan.rule->operands, operand, '?');
    } else if (row.kind == ArgumentKind::kNumber && !plan.is_fallback()) {
      row.mode = mode_at(plan.rule->scalars, number, '.');
    }
    TORCH_CHECK(row.mode != '?', "autoscale: expected a rule with a mode for each tensor of ", plan.run.schema());
    if (argument.name() == "dtype") plan.dtype_argument = static_cast<int>(plan.arguments.size());
    plan.arguments.push_back(row);
  }
  if (plan.is_fallback()) return;
  const auto numbers = std::count_if(plan.arguments.begin(), plan.arguments.end(), [](const ArgumentPlan& argument) {
    return argument.kind == ArgumentKind::kNumber;
  });
  check_modes(plan.rule->operands, kOperandModes, operand, plan.run.schema());
  check_modes(plan.rule->scalars, kNumberModes, static_cast<size_t>(numbers), plan.run.schema());
  check_modes(plan.rule->results, kResultModes, plan.run.schema().returns().size(), plan.run.schema());
}

void plan_results(Plan& plan) {
  const c10::FunctionSchema& schema = plan.run.schema();
  size_t next = 0;
  for (const c10::Argument& result : schema.returns()) {
    ResultPlan row = {.mode = plan.is_fallback() ? 'm' : mode_at(plan.rule->results, next, '*')};
    for (size_t i = 0; is_written(result) && i < schema.arguments().size(); ++i) {
      if (is_written(schema.arguments()[i]) && *schema.arguments()[i].alias_info() == *result.alias_info())
        row.written = static_cast<int>(i);
    }
    plan.results.push_back(row);
  }
}

bool is_view(const c10::FunctionSchema& schema) {
  if (schema.arguments().empty()) return false;
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
  plan.is_view = rule == nullptr && is_view(op.schema());
  plan.is_composite = rule == nullptr && !plan.is_view && is_composite(op);
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
