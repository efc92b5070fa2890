#include "plimsoll/autoscale/variants.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "plimsoll/autoscale/rule.h"
#include "plimsoll/autoscale/scaled_tensor_impl.h"

namespace plimsoll::autoscale {
namespace {

c10::OperatorHandle operator_of(const std::string& op) {
  const size_t dot = std::min(op.find('.'), op.size());
  return c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + op.substr(0, dot)).c_str(),
                                                        op.substr(std::min(dot + 1, op.size())).c_str());
}

std::vector<std::string> names_of(const std::vector<c10::OperatorHandle>& variants) {
  std::vector<std::string> names;
  for (const c10::OperatorHandle& op : variants) names.push_back(c10::toString(op.operator_name()));
  return names;
}

using Names = std::vector<std::string>;

TEST(Variants, ArgumentsTellWhichOverloadIsTheVariantInPlace) {
  EXPECT_EQ(names_of(variants_of(operator_of("pow.Tensor_Scalar")).in_place), Names{"aten::pow_.Scalar"});
  EXPECT_EQ(names_of(variants_of(operator_of("pow.Tensor_Tensor")).in_place), Names{"aten::pow_.Tensor"});
  EXPECT_EQ(names_of(variants_of(operator_of("pow.Scalar")).in_place), Names{});
  EXPECT_EQ(names_of(variants_of(operator_of("scatter.value")).in_place), Names{"aten::scatter_.value"});
}

TEST(Variants, OutIsWhatFollowsTheArguments) {
  EXPECT_EQ(names_of(variants_of(operator_of("mm")).out), Names{"aten::mm.out"});
  EXPECT_EQ(names_of(variants_of(operator_of("max.dim")).out), Names{"aten::max.dim_max"});
  EXPECT_EQ(names_of(variants_of(operator_of("pow.Scalar")).out), Names{"aten::pow.Scalar_out"});
}

TEST(Variants, AnOperatorThatWritesHasNone) {
  EXPECT_TRUE(variants_of(operator_of("copy_")).out.empty());
  EXPECT_TRUE(variants_of(operator_of("add_.Tensor")).in_place.empty());
}

TEST(Variants, EachIsOfOneRuleAndIsRegistered) {
  std::map<std::string, std::string_view> rule_of;
  for (const Rule& rule : rules()) {
    if (rule.op.find("::") != std::string_view::npos) continue;
    const Variants variants = variants_of(operator_of(std::string(rule.op)));
    for (const std::vector<c10::OperatorHandle>& list : {variants.in_place, variants.out}) {
      for (const c10::OperatorHandle& op : list) {
        const auto [found, is_new] = rule_of.emplace(c10::toString(op.operator_name()), rule.op);
        EXPECT_TRUE(is_new) << found->first << " is a variant of " << found->second << " and of " << rule.op;
        EXPECT_TRUE(op.hasKernelForDispatchKey(kScaledKey)) << found->first;
      }
    }
  }
  EXPECT_GT(rule_of.size(), 200u);
}

}  // namespace
}  // namespace plimsoll::autoscale
