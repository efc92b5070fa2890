#include "plimsoll/autoscale/variants.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>

#include "plimsoll/autoscale/parts.h"
#include "plimsoll/autoscale/rule.h"
#include "plimsoll/autoscale/storage.h"

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

// Small whole numbers, whose products FP16 holds.
TEST(Variants, EachGivesWhatTheFunctionalOperatorGives) {
  const auto session = std::make_shared<Session>(Settings{});
  const at::Tensor a = at::arange(1, 41).view({5, 8}).to(at::kHalf), b = a.flip({0}), c = a.to(at::kFloat) * b;
  for (const int32_t exponent : {-40, -3, 0, 17, 40}) {
    const at::Tensor x = join({a, exponent}, session), y = join({b, -7}, session);
    const at::Tensor expected = c * std::exp2(exponent - 7);
    at::Tensor out = join({b}, session), target = at::clone(x), plain = a.to(at::kFloat) * std::exp2(exponent);
    at::mul_out(out, x, y);
    target.mul_(y);
    plain.mul_(y);
    EXPECT_TRUE(at::equal(value_of(out), expected)) << exponent;
    EXPECT_TRUE(at::equal(value_of(target), expected)) << exponent;
    EXPECT_TRUE(!is_scaled(plain) && at::equal(plain, expected)) << exponent;
  }
}

// A parameter is updated by blocks, and what is cut off it is kept: 256 steps below its last bit are not lost.
TEST(Variants, AParameterThatIsWrittenInPlaceKeepsWhatIsCutOff) {
  const auto session = std::make_shared<Session>(Settings{});
  const at::Tensor weight = as_scaled(at::ones({300, 70}), session), step = join({at::ones({300, 70}), -16}, session);
  scaled_impl(weight).shared().parameter = true;
  for (int i = 0; i < 256; ++i) weight.add_(step);
  EXPECT_TRUE(at::equal(value_to_write(scaled_impl(weight)), at::full({300, 70}, 1 + 0x1p-8)));
}

// Steps below the last bit of a parameter add up, whatever is written into a part of it, or through another view.
TEST(Variants, AWriteIntoAViewOfAParameterKeepsWhatIsCutOffTheRest) {
  const auto session = std::make_shared<Session>(Settings{});
  const at::Tensor step = join({at::ones({4, 6}), -16}, session), five = join({at::full({6}, 5, at::kHalf)}, session);
  const std::function<void(const at::Tensor&)> writes[] = {
      [](const at::Tensor& weight) { weight[0].zero_(); }, [](const at::Tensor& weight) { weight[0].fill_(3); },
      [&](const at::Tensor& weight) { weight[0].copy_(five); },
      [](const at::Tensor& weight) { weight[0].mul_(8).mul_(0.125); },
      [](const at::Tensor& weight) { weight.t().select(1, 0).add_(1); }};
  for (const auto& write : writes) {
    const at::Tensor weight = as_scaled(at::ones({4, 6}), session);
    scaled_impl(weight).shared().parameter = true;
    for (int i = 0; i < 256; ++i) {
      weight.add_(step);
      write(weight);
    }
    const at::Tensor rest = value_to_write(scaled_impl(weight)).narrow(0, 1, 3);
    EXPECT_LE((rest - (1 + 0x1p-8)).abs().max().item<float>(), 0x1p-16) << &write - writes;
  }
  const at::Tensor weight = as_scaled(at::ones({4, 6}), session);
  scaled_impl(weight).shared().parameter = true;
  weight.add_(step);
  for (int i = 0; i < 255; ++i) i % 2 == 0 ? weight[1].add_(step[1]) : weight.t().add_(step.t());
  const at::Tensor value = value_to_write(scaled_impl(weight));
  EXPECT_TRUE(at::equal(value[1], at::full({6}, 1 + 0x1p-8)));
  EXPECT_TRUE(at::equal(value[2], at::full({6}, 1 + 0x1p-9)));
}

// 1 + 2^-11 as 1 and half a last place more, and as the next number and half a place less; remainders are times 2^11.
TEST(Variants, ACopyOfAParameterHasItsBits) {
  for (const int32_t exponent : {0, 1, -9}) {
    const at::Tensor source =
        join({at::tensor({1.F, 1 + 0x1p-10F}).to(at::kHalf)}, std::make_shared<Session>(Settings{}));
    const at::Tensor remainder = at::tensor({1.F, -1.F}).to(at::kHalf);
    set_remainder(source, remainder);
    const at::Tensor target = join({at::full({2}, 3, at::kHalf), exponent}, std::make_shared<Session>(Settings{}));
    scaled_impl(target).shared().parameter = true;
    target.copy_(source);
    const ScaledTensorImpl& copied = scaled_impl(target);
    EXPECT_TRUE(at::equal(copied.data(), scaled_impl(source).data())) << exponent;
    EXPECT_TRUE(at::equal(copied.shared().remainder, remainder)) << exponent;
    EXPECT_EQ(copied.scale().exponent, 0);
    target.copy_(join({at::full({2}, 5, at::kHalf)}, copied.shared().session));
    EXPECT_TRUE(at::equal(value_to_write(copied), at::full({2}, 5, at::kFloat))) << "the remainder stayed";
  }
}

}  // namespace
}  // namespace plimsoll::autoscale
