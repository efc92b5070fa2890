#include <gtest/gtest.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <set>
#include <string>

#include "plimsoll/autoscale/plan.h"
#include "plimsoll/autoscale/scaled_tensor_impl.h"
#include "plimsoll/ops/dispatcher/find_operator.h"

namespace plimsoll::autoscale {
namespace {

bool is_own(const Rule& rule) { return rule.op.starts_with("plimsoll::"); }

std::optional<c10::OperatorHandle> operator_of(const Rule& rule) {
  ops::find_operator("plimsoll::gemm");  // links the library's own
  const std::string name = is_own(rule) ? std::string(rule.op) : "aten::" + std::string(rule.op);
  return c10::Dispatcher::singleton().findSchema(torch::jit::parseName(name));
}

// A row that torch has no operator for, or that a call does not come to, would be one that nobody reads.
TEST(RuleTable, EachRowIsReadByTheOperatorThatItNames) {
  for (const Rule& rule : rules()) {
    const std::optional<c10::OperatorHandle> op = operator_of(rule);
    ASSERT_TRUE(op) << rule.op;
    EXPECT_NO_THROW(make_plan(*op, &rule, *op)) << rule.op;
    if (is_own(rule)) {
      EXPECT_EQ(plan_when_called(*op).rule, &rule) << rule.op;
    } else {
      EXPECT_TRUE(op->hasKernelForDispatchKey(kScaledKey)) << rule.op;
    }
  }
}

TEST(RuleTable, NoOperatorHasTwoRows) {
  std::set<std::string_view> names;
  for (const Rule& rule : rules()) EXPECT_TRUE(names.insert(rule.op).second) << rule.op;
}

TEST(RuleTable, ARowThatSaysNothingGetsWhatItsClassSays) {
  for (const Rule& rule : rules()) {
    const std::optional<c10::OperatorHandle> op = operator_of(rule);
    ASSERT_TRUE(op) << rule.op;
    const Plan plan = make_plan(*op, &rule, *op);
    const ClassOfRules of_class = class_of(rule.kind);
    for (const ResultPlan& result : plan.results)
      EXPECT_TRUE(rule.results.size() > 0 || result.scale == of_class.result) << rule.op;
    const auto is_tensor = [](const ArgumentPlan& argument) { return argument.kind == ArgumentKind::kTensor; };
    const auto first = std::find_if(plan.arguments.begin(), plan.arguments.end(), is_tensor);
    if (first == plan.arguments.end()) continue;
    EXPECT_TRUE(rule.operands.size() > 0 || first->use == of_class.first) << rule.op;
  }
}

TEST(RuleTable, AnOperatorWithoutARowRunsOnValuesOrIsAView) {
  const auto plan_of = [](const char* name) {
    return plan_when_called(*c10::Dispatcher::singleton().findSchema(torch::jit::parseName(name)));
  };
  const Plan lgamma = plan_of("aten::lgamma"), unfold = plan_of("aten::unfold");
  EXPECT_EQ(lgamma.arguments.front().use, Use::kValue);
  EXPECT_EQ(lgamma.results.front().scale, ResultScale::kMeasured);
  EXPECT_EQ(lgamma.scales, nullptr);
  EXPECT_NE(unfold.kernel, lgamma.kernel);
  EXPECT_NE(unfold.scales, nullptr);
}

}  // namespace
}  // namespace plimsoll::autoscale
