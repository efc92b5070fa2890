#include "plimsoll/recipe/automatic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "plimsoll/format/codec.h"

namespace plimsoll::recipe::automatic_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

auto fails_with(std::string_view message) {
  return ThrowsMessage<std::invalid_argument>(HasSubstr(std::string(message)));
}

TEST(AutomaticRecipe, TheDefaultLadderIsE4m3ThenBf16) {
  const Automatic recipe = automatic_from_text("auto");
  ASSERT_EQ(recipe.ladder.size(), 2U);
  EXPECT_EQ(recipe.ladder[0].name, "e4m3");
  EXPECT_EQ(recipe.ladder[1].name, "bf16");
  for (const Role role : {Role::kInput, Role::kGradOutput}) {
    EXPECT_EQ(recipe.stored_operand(0, role, GemmKind::kGradWeight).format, Format::kE4m3);
  }
  EXPECT_EQ(to_json(recipe), to_json(automatic_from_text("auto:e4m3>bf16")));
}

TEST(AutomaticRecipe, ARungMayBeARecipe) {
  const Automatic recipe = automatic_from_text("auto:mxfp8>fp32");
  EXPECT_EQ(recipe.at({}).name(), "mxfp8");
  EXPECT_EQ(recipe.at({.output = 1}).high_precision_format(), Format::kFp32);
}

TEST(AutomaticRecipe, EachProductHasARungOfItsOwn) {
  const Automatic recipe = automatic_from_text("auto");
  for (const GemmKind up : kGemmKinds) {
    ProductRungs rungs;
    rungs.of(up) = 1;
    const Recipe layer = recipe.at(rungs);
    for (const GemmKind gemm : kGemmKinds) {
      EXPECT_EQ(layer.high_precision(gemm), gemm == up);
    }
  }
}

TEST(AutomaticRecipe, ThreeRungsGiveEachProductItsOwnCodes) {
  const Automatic recipe = automatic_from_text("auto:e2m1>e4m3>fp16");
  EXPECT_EQ(recipe.at({}).name(), "nvfp4");
  EXPECT_EQ(recipe.at({1, 1, 1}).name(), "fp8");
  const Recipe layer = recipe.at({.output = 2, .grad_input = 0, .grad_weight = 1});
  EXPECT_EQ(layer.name(), "mixed");
  EXPECT_TRUE(layer.high_precision(GemmKind::kOutput));
  EXPECT_EQ(layer.high_precision_format(), Format::kFp16);
  EXPECT_EQ(layer.operand(Role::kInput, GemmKind::kOutput).format, Format::kFp16);
  EXPECT_EQ(layer.operand(Role::kWeight, GemmKind::kGradInput),
            recipe.at({}).operand(Role::kWeight, GemmKind::kGradInput));
  EXPECT_EQ(layer.stored_operand(Role::kInput, GemmKind::kGradWeight),
            recipe.stored_operand(1, Role::kInput, GemmKind::kGradWeight));
  EXPECT_NE(layer.delayed(), nullptr);
  EXPECT_TRUE(layer.has_four_bits());
  EXPECT_TRUE(layer.is_random());
  EXPECT_FALSE(layer.shares_codes(Role::kGradOutput));
  EXPECT_EQ(recipe.at({2, 1, 1}).delayed()->fp8_format, Fp8Format::kE4m3);
  EXPECT_FALSE(recipe.at({2, 1, 1}).has_four_bits());
  EXPECT_EQ(recipe.at({0, 0, 2}).delayed(), nullptr);
}

TEST(AutomaticRecipe, EachRungHasItsBounds) {
  const Automatic recipe = automatic_from_text("auto:mxfp4>e4m3>bf16");
  EXPECT_DOUBLE_EQ(recipe.bound(0, Role::kInput), 2 * rounding_error(Format::kE2m1));
  EXPECT_DOUBLE_EQ(recipe.bound(0, Role::kGradOutput), 4 * rounding_error(Format::kE4m3));  // MXFP8
  EXPECT_DOUBLE_EQ(recipe.bound(1, Role::kInput), 2 * rounding_error(Format::kE4m3));
  EXPECT_DOUBLE_EQ(recipe.flushed(0, Role::kWeight), 0.75);
  EXPECT_DOUBLE_EQ(recipe.flushed(1, Role::kWeight), 0.25);
}

TEST(AutomaticRecipe, JsonHoldsEveryArgument) {
  const std::string text =
      R"({"name":"auto","ladder":"fp8-row>bf16","every":3,"votes":5,"ballots":9,"quiet":7,"window":11,)"
      R"("last_share":0.25,"demote_share":0.5,"mean_decay":0.125,"flushed":0.5,"bound":[1.5,2.5,3.5]})";
  const Automatic recipe = automatic_from_text(text);
  EXPECT_EQ(to_json(recipe), text);
  const AutomaticLimits expected{.every = 3,
                                 .votes = 5,
                                 .ballots = 9,
                                 .quiet = 7,
                                 .window = 11,
                                 .last_share = 0.25,
                                 .demote_share = 0.5,
                                 .mean_decay = 0.125,
                                 .flushed = 0.5,
                                 .bound = {1.5, 2.5, 3.5}};
  EXPECT_EQ(recipe.limits, expected);
}

TEST(AutomaticRecipe, BadTextIsOneClearError) {
  const auto parse = [](const char* text) { return [text] { return automatic_from_text(text); }; };
  EXPECT_THAT(parse("auto:e4m4>bf16"), fails_with("rung of the ladder: expected e4m3"));
  for (const char* ladder : {"bf16>e4m3", "e4m3>e2m1>bf16", "e4m3>fp8>bf16", "nvfp4>mxfp4>bf16", "e2m1>e4m3",
                             "e4m3>bf16>fp32", "e4m3", "bf16"}) {
    const std::string text = std::string("auto:") + ladder;
    EXPECT_THAT(parse(text.c_str()), fails_with("expected a ladder of one format of four bits or one of eight"))
        << ladder;
    EXPECT_THAT(parse(text.c_str()), fails_with("got '" + std::string(ladder) + "'"));
  }
  EXPECT_THAT(parse("auto:"), fails_with("got ''"));
  EXPECT_THAT(parse(R"({"name": "auto", "evry": 3})"), fails_with("expected every"));
  EXPECT_THAT(parse(R"({"name": "auto", "every": 0})"), fails_with("expected every >= 1, got 0"));
  EXPECT_THAT(parse(R"({"name": "auto", "every": 1.5})"), fails_with("expected every as an integer, got 1.5"));
  EXPECT_THAT(parse(R"({"name": "auto", "votes": 5})"), fails_with("expected votes in [1, 4]"));
  EXPECT_THAT(parse(R"({"name": "auto", "ballots": 65})"), fails_with("expected ballots in [1, 64]"));
  EXPECT_THAT(parse(R"({"name": "auto", "bound": [1, 2]})"), fails_with("expected bound [input, weight, grad_output]"));
  EXPECT_THAT(parse(R"({"name": "auto", "bound": [1, 0, 2]})"), fails_with("expected bound > 0"));
  EXPECT_THAT(parse(R"({"name": "auto", "mean_decay": 1})"), fails_with("expected mean_decay in [0, 1)"));
  EXPECT_THAT(parse(R"({"name": "fp8"})"), fails_with("with the name auto"));
  EXPECT_FALSE(is_automatic("automatic"));
  EXPECT_FALSE(is_automatic("fp8"));
  EXPECT_FALSE(is_automatic("{"));
}

// The oracle rounds numbers one by one, at even steps of their logarithm over four binades.
TEST(AutomaticRecipe, TheRoundingErrorIsThatOfNumbersSpreadEvenly) {
  constexpr int kNumbers = 1 << 16;
  double error = 0, squares = 0;
  for (int i = 0; i < kNumbers; ++i) {
    const double mantissa = std::exp2((i + 0.5) / kNumbers);
    const double rounded =
        double{format::decode(Format::kE4m3, format::encode(Format::kE4m3, static_cast<float>(mantissa)))};
    error += (rounded - mantissa) * (rounded - mantissa);
    squares += mantissa * mantissa;
  }
  // The formula takes the errors of each step of 2^-3 as spread evenly between its ends, which they are but for the
  // slope of 1 / x along a step: second order in the step, and the quotient of two sums of 65536 numbers.
  EXPECT_NEAR(rounding_error(Format::kE4m3) / std::sqrt(error / squares), 1, std::exp2(-6));
  EXPECT_DOUBLE_EQ(rounding_error(Format::kE5m2), 2 * rounding_error(Format::kE4m3));
}

}  // namespace
}  // namespace plimsoll::recipe::automatic_test
