#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plimsoll/recipe/recipe.h"

namespace plimsoll::recipe {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

auto fails_with(std::string_view message) {
  return ThrowsMessage<std::invalid_argument>(HasSubstr(std::string(message)));
}

TEST(RecipeJson, EveryNameComesBack) {
  for (std::string_view name : names()) {
    const std::string text = to_json(by_name(name));
    const Recipe recipe = from_json(text);
    EXPECT_EQ(recipe.name(), name);
    EXPECT_EQ(to_json(recipe), text);
    EXPECT_EQ(to_json(from_json('"' + std::string(name) + '"')), text);
  }
}

TEST(RecipeJson, ArgumentsReplaceDefaults) {
  const Recipe recipe =
      from_json(R"({"name": "fp8", "margin": -1, "interval": 4, "amax_history_len": 16, "fp8_format": "E4M3",
      "amax_compute_algo": "most_recent", "override_linear_precision": [false, true, false], "reduce_amax": false,
      "power_of_two": true, "backward_override": "dequantized", "high_precision_format": "fp32"})");
  const DelayedScaling& args = *recipe.delayed();
  EXPECT_EQ(args.margin, -1);
  EXPECT_EQ(args.interval, 4);
  EXPECT_EQ(args.amax_history_len, 16);
  EXPECT_EQ(args.fp8_format, Fp8Format::kE4m3);
  EXPECT_EQ(std::get<AmaxRule>(args.amax_compute_algo), AmaxRule::kMostRecent);
  EXPECT_EQ(args.override_linear_precision, (LinearOverride{.grad_input = true}));
  EXPECT_EQ(args.backward_override, BackwardOverride::kDequantized);
  EXPECT_FALSE(args.reduce_amax);
  EXPECT_TRUE(args.power_of_two);
  EXPECT_EQ(args.high_precision_format, Format::kFp32);
  EXPECT_EQ(to_json(from_json(to_json(recipe))), to_json(recipe));
  const Recipe mx = from_json(R"({"name": "mxfp8", "rounding": "down"})");
  EXPECT_EQ(std::get<Mxfp8>(mx.scaling()).rounding, ScaleRounding::kDown);
  const Recipe four = from_json(R"({"name": "nvfp4-4over6", "disable_rht": true, "disable_2d_quantization": true})");
  const auto& nvfp4 = std::get<Nvfp4Scaling>(four.scaling());
  EXPECT_TRUE(nvfp4.four_over_six && nvfp4.disable_rht && nvfp4.disable_2d_quantization);
  EXPECT_FALSE(nvfp4.disable_stochastic_rounding);
  const Recipe eden = from_json(R"({"name": "ms-eden", "disable_stochastic_rounding": true})");
  const auto& args_of_eden = std::get<Nvfp4Scaling>(eden.scaling());
  EXPECT_TRUE(args_of_eden.ms_eden && args_of_eden.disable_stochastic_rounding);
  EXPECT_EQ(to_json(from_json(to_json(eden))), to_json(eden));
}

TEST(RecipeJson, WritesEveryArgument) {
  EXPECT_EQ(to_json(by_name("bf16")), R"({"name":"bf16"})");
  EXPECT_EQ(
      to_json(by_name("fp8")),
      R"({"name":"fp8","margin":0,"interval":1,"amax_history_len":1024,"amax_compute_algo":"max",)"
      R"("reduce_amax":true,"fp8_format":"HYBRID","power_of_two":false,)"
      R"("override_linear_precision":[false,false,false],"backward_override":"none","high_precision_format":"bf16"})");
}

TEST(RecipeJson, BadInputSaysWhatWasExpected) {
  EXPECT_THAT([] { from_json("fp8"); }, fails_with("recipe: expected a JSON string or object, got fp8"));
  EXPECT_THAT([] { from_json("[]"); }, fails_with("got []"));
  EXPECT_THAT([] { from_json("{}"); }, fails_with("expected a \"name\""));
  EXPECT_THAT([] { from_json("\"fp9\""); }, fails_with("got 'fp9'"));
  EXPECT_THAT([] { from_json(R"({"name": "fp8", "margins": 1})"); },
              fails_with("argument of recipe fp8: expected margin,"));
  EXPECT_THAT([] { from_json(R"({"name": "mxfp8", "interval": 1})"); }, fails_with("got 'interval'"));
  EXPECT_THAT([] { from_json(R"({"name": "mxfp4", "disable_rht": true})"); }, fails_with("got 'disable_rht'"));
  EXPECT_THAT([] { from_json(R"({"name": "nvfp4", "four_over_six": true})"); }, fails_with("got 'four_over_six'"));
  EXPECT_THAT([] { from_json(R"({"name": "nvfp4", "ms_eden": true})"); }, fails_with("got 'ms_eden'"));
  EXPECT_THAT([] { from_json(R"({"name": "fp8", "margin": 1.5})"); },
              fails_with("margin: expected an integer, got 1.5"));
  EXPECT_THAT([] { from_json(R"({"name": "fp8", "margin": 4294967296})"); }, fails_with("an integer of 32 bits"));
  EXPECT_THAT([] { from_json(R"({"name": "fp8", "interval": 18446744073709551615})"); }, fails_with("of 64 bits"));
  EXPECT_THAT([] { from_json(R"({"name": "fp8", "interval": 0})"); }, fails_with("interval >= 1, got 0"));
  EXPECT_THAT([] { from_json(R"({"name": "fp8", "fp8_format": "E5M2"})"); }, fails_with("got E5M2"));
  EXPECT_THAT([] { from_json(R"({"name": "fp8", "fp8_format": "E3M4"})"); },
              fails_with(R"(fp8_format: expected "E4M3" or "HYBRID")"));
  EXPECT_THAT([] { from_json(R"({"name": "fp8", "reduce_amax": 1})"); }, fails_with("true or false, got 1"));
  EXPECT_THAT([] { from_json(R"({"name": "fp8", "override_linear_precision": [true]})"); },
              fails_with("[fprop, dgrad, wgrad]"));
}

TEST(RecipeJson, ARecipeWhoseProductsDifferCannotBeWritten) {
  const Recipe mixed(ProductScalings{{Mxfp8{}, HighPrecision{Format::kBf16}}, {0, 1, 0}});
  EXPECT_THAT([&] { to_json(mixed); }, fails_with("one for all products"));
}

TEST(RecipeJson, CallablesCannotBeWritten) {
  DelayedScaling args;
  args.amax_compute_algo = [](std::span<const float> history) { return history.front(); };
  EXPECT_THAT([&] { to_json(args); }, fails_with("amax_compute_algo"));
  args = {};
  args.scaling_factor_compute_algo = [](const InvScaleInput& input) { return input.old_inv_scale; };
  EXPECT_THAT([&] { to_json(args); }, fails_with("scaling_factor_compute_algo"));
}

}  // namespace
}  // namespace plimsoll::recipe
