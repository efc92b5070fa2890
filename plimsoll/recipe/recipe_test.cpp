#include "plimsoll/recipe/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plimsoll/recipe/names.h"

namespace plimsoll::recipe {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr Role kRoles[] = {Role::kInput, Role::kWeight, Role::kGradOutput};

TEST(Recipe, DefaultsAreThoseOfTheContract) {
  const DelayedScaling args;
  EXPECT_EQ(args.margin, 0);
  EXPECT_EQ(args.interval, 1);
  EXPECT_EQ(args.fp8_format, Fp8Format::kHybrid);
  EXPECT_EQ(args.amax_history_len, 1024);
  EXPECT_EQ(std::get<AmaxRule>(args.amax_compute_algo), AmaxRule::kMax);
  EXPECT_FALSE(args.scaling_factor_compute_algo);
  EXPECT_EQ(args.override_linear_precision, LinearOverride{});
  EXPECT_TRUE(args.reduce_amax);
  EXPECT_FALSE(args.power_of_two);
  EXPECT_FALSE(CurrentScaling{}.power_of_two);
  EXPECT_TRUE(BlockScaling{}.power_of_two);
  EXPECT_EQ(Mxfp8{}.rounding, ScaleRounding::kUp);
}

TEST(Recipe, NamesComeBack) {
  EXPECT_THAT(names(), ::testing::ElementsAre("fp32", "bf16", "fp16", "fp8", "fp8-current", "fp8-row", "fp8-block",
                                              "mxfp8", "nvfp4", "nvfp4-4over6", "ms-eden", "mxfp4"));
  for (std::string_view name : names()) EXPECT_EQ(by_name(name).name(), name);
  EXPECT_EQ(Recipe().name(), "fp32");
}

TEST(Recipe, UnknownNameListsTheNearestFirst) {
  EXPECT_THAT([] { by_name("fp8_block"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("recipe: expected fp8-block,")));
  EXPECT_THAT([] { by_name("MXFP8"); }, ThrowsMessage<std::invalid_argument>(HasSubstr("expected mxfp8,")));
  EXPECT_THAT([] { by_name("bf61"); }, ThrowsMessage<std::invalid_argument>(HasSubstr("expected bf16,")));
  EXPECT_THAT([] { by_name(""); }, ThrowsMessage<std::invalid_argument>(HasSubstr("got ''")));
}

TEST(EditDistance, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("ab", "ba"), 1);
  EXPECT_EQ(edit_distance("FP8", "fp8"), 0);
}

TEST(Recipe, HybridUsesE5m2ForGradientsOnly) {
  const Recipe recipe = by_name("fp8");
  const OperandRecipe input = recipe.operand(Role::kInput, GemmKind::kOutput);
  EXPECT_EQ(input, (OperandRecipe{.format = Format::kE4m3, .source = ScaleSource::kDelayed}));
  EXPECT_EQ(recipe.operand(Role::kWeight, GemmKind::kGradInput), input);
  EXPECT_EQ(recipe.operand(Role::kGradOutput, GemmKind::kGradWeight).format, Format::kE5m2);
  const Recipe e4m3 = DelayedScaling{.fp8_format = Fp8Format::kE4m3, .power_of_two = true};
  const OperandRecipe grad = e4m3.operand(Role::kGradOutput, GemmKind::kGradInput);
  EXPECT_EQ(grad.format, Format::kE4m3);
  EXPECT_TRUE(grad.power_of_two);
}

TEST(Recipe, PureE5m2IsRejected) {
  EXPECT_THAT([] { Recipe(DelayedScaling{.fp8_format = Fp8Format::kE5m2}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("expected fp8_format E4M3 or HYBRID, got E5M2")));
  EXPECT_THROW(Recipe(CurrentScaling{.fp8_format = Fp8Format::kE5m2}), std::invalid_argument);
  EXPECT_THROW(Recipe(BlockScaling{.fp8_format = Fp8Format::kE5m2}), std::invalid_argument);
  EXPECT_THROW(Recipe(Mxfp8{.fp8_format = Fp8Format::kE5m2}), std::invalid_argument);
}

TEST(Recipe, ArgumentsOutOfRangeAreRejected) {
  EXPECT_THROW(Recipe(DelayedScaling{.interval = 0}), std::invalid_argument);
  EXPECT_THROW(Recipe(DelayedScaling{.amax_history_len = 0}), std::invalid_argument);
  EXPECT_THROW(Recipe(DelayedScaling{.margin = 128}), std::invalid_argument);
  EXPECT_THROW(Recipe(DelayedScaling{.amax_compute_algo = AmaxFunction{}}), std::invalid_argument);
  EXPECT_THROW(Recipe(DelayedScaling{.high_precision_format = Format::kE4m3}), std::invalid_argument);
  EXPECT_THROW(Recipe(HighPrecision{Format::kE5m2}), std::invalid_argument);
  EXPECT_THAT([] { Recipe(CurrentScaling{.granularity = kMxBlock}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("got 1 x 32")));
}

TEST(Recipe, AllEightOverridesHold) {
  for (int bits = 0; bits < 8; ++bits) {
    const LinearOverride which{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
    for (const Recipe& recipe : {Recipe(DelayedScaling{.override_linear_precision = which}),
                                 Recipe(CurrentScaling{.override_linear_precision = which}),
                                 Recipe(BlockScaling{.override_linear_precision = which}),
                                 Recipe(Mxfp8{.override_linear_precision = which})}) {
      EXPECT_EQ(recipe.high_precision(), bits == 7);
      for (size_t gemm = 0; gemm < 3; ++gemm) {
        const bool high = (bits >> gemm & 1) != 0;
        EXPECT_EQ(recipe.high_precision(kGemmKinds[gemm]), high);
        for (Role role : kRoles) {
          if (!takes_part(role, kGemmKinds[gemm])) continue;
          const OperandRecipe operand = recipe.operand(role, kGemmKinds[gemm]);
          EXPECT_EQ(operand.source == ScaleSource::kNone, high);
          EXPECT_EQ(operand.format == Format::kBf16, high);
        }
      }
    }
  }
}

TEST(Recipe, ABackwardOverrideRunsTheBackwardProductsInHighPrecisionOnValuesOrOnThoseOfTheCodes) {
  for (const BackwardOverride which : {BackwardOverride::kHighPrecision, BackwardOverride::kDequantized}) {
    const bool reads_codes = which == BackwardOverride::kDequantized;
    for (const Recipe& recipe :
         {Recipe(DelayedScaling{.backward_override = which}),
          Recipe(CurrentScaling{.granularity = kPerRow, .backward_override = which}),
          Recipe(BlockScaling{.backward_override = which}), Recipe(Mxfp8{.backward_override = which})}) {
      EXPECT_FALSE(recipe.high_precision(GemmKind::kOutput));
      EXPECT_TRUE(recipe.high_precision(GemmKind::kGradInput) && recipe.high_precision(GemmKind::kGradWeight));
      for (const auto& [role, gemm] :
           {std::pair{Role::kInput, GemmKind::kGradWeight}, {Role::kWeight, GemmKind::kGradInput}}) {
        const OperandRecipe values = recipe.operand(role, gemm);
        EXPECT_EQ(values.source, ScaleSource::kNone);
        EXPECT_EQ(recipe.stored_operand(role, gemm), reads_codes ? recipe.operand(role, GemmKind::kOutput) : values);
        EXPECT_EQ(recipe.shares_codes(role), reads_codes);
      }
      EXPECT_EQ(recipe.stored_operand(Role::kGradOutput, GemmKind::kGradInput).source, ScaleSource::kNone);
    }
  }
}

TEST(Recipe, HighPrecisionHasNoScales) {
  for (std::string_view name : {"fp32", "bf16", "fp16"}) {
    const Recipe recipe = by_name(name);
    EXPECT_TRUE(recipe.high_precision());
    EXPECT_EQ(format::info(recipe.high_precision_format()).name, name);
    EXPECT_EQ(recipe.operand(Role::kInput, GemmKind::kGradWeight),
              (OperandRecipe{.format = recipe.high_precision_format()}));
    EXPECT_EQ(recipe.delayed(), nullptr);
  }
  EXPECT_EQ(by_name("fp8").high_precision_format(), Format::kBf16);
}

TEST(Recipe, BlockScalingDistinguishesWeights) {
  const Recipe recipe = by_name("fp8-block");
  for (GemmKind gemm : kGemmKinds) {
    for (Role role : kRoles) {
      if (!takes_part(role, gemm)) continue;
      const OperandRecipe operand = recipe.operand(role, gemm);
      EXPECT_EQ(operand.granularity, role == Role::kWeight ? kBlock128x128 : kBlock1x128);
      EXPECT_EQ(operand.source, ScaleSource::kCurrent);
      EXPECT_TRUE(operand.power_of_two);
    }
  }
}

TEST(Recipe, MxScalesAreE8m0AlongTheReduction) {
  const Recipe recipe = Mxfp8{.rounding = ScaleRounding::kDown};
  const OperandRecipe input = recipe.operand(Role::kInput, GemmKind::kGradWeight);
  EXPECT_EQ(input.granularity, kMxBlock);
  EXPECT_EQ(input.scale_format, Format::kE8m0);
  EXPECT_EQ(input.rounding, ScaleRounding::kDown);
  EXPECT_EQ(stored_granularity(input.granularity, Role::kInput, GemmKind::kGradWeight), (Granularity{32, 1}));
  EXPECT_EQ(stored_granularity(input.granularity, Role::kInput, GemmKind::kOutput), kMxBlock);
}

TEST(Recipe, Nvfp4RotatesWhatGradWeightReadsAndRoundsGradientsStochastically) {
  const Recipe recipe = by_name("nvfp4");
  for (GemmKind gemm : kGemmKinds) {
    for (Role role : kRoles) {
      if (!takes_part(role, gemm)) continue;
      const OperandRecipe operand = recipe.operand(role, gemm);
      EXPECT_EQ(operand.format, Format::kE2m1);
      EXPECT_EQ(operand.scale_format, Format::kE4m3);
      EXPECT_EQ(operand.scaling, format::Fp4Scaling::kNvfp4);
      EXPECT_EQ(operand.granularity, role == Role::kWeight ? kNvfp4Square : kNvfp4Block);
      EXPECT_EQ(operand.rotation, gemm == GemmKind::kGradWeight ? 16 : 0);
      EXPECT_EQ(operand.stochastic, role == Role::kGradOutput);
      EXPECT_FALSE(operand.turned);
      EXPECT_EQ(recipe.stored_operand(role, gemm).turned, reduces_over_rows(role, gemm));
      EXPECT_EQ(by_name("nvfp4-4over6").operand(role, gemm).scaling, format::Fp4Scaling::kFourOverSix);
    }
  }
  EXPECT_TRUE(recipe.has_four_bits() && recipe.is_random());
}

TEST(Recipe, MsEdenRotatesAndRoundsScalesOfBothOperandsOfBackward) {
  const Recipe recipe = by_name("ms-eden"), nvfp4 = by_name("nvfp4");
  for (GemmKind gemm : kGemmKinds) {
    for (Role role : kRoles) {
      if (!takes_part(role, gemm)) continue;
      const OperandRecipe operand = recipe.operand(role, gemm);
      if (gemm == GemmKind::kOutput) {
        EXPECT_EQ(operand, nvfp4.operand(role, gemm));
        continue;
      }
      EXPECT_EQ(operand, (OperandRecipe{.format = Format::kE2m1,
                                        .source = ScaleSource::kCurrent,
                                        .granularity = kNvfp4Block,
                                        .scale_format = Format::kE4m3,
                                        .scaling = format::Fp4Scaling::kMsEden,
                                        .rotation = 128,
                                        .stochastic = true}));
      EXPECT_EQ(recipe.stored_operand(role, gemm).turned, reduces_over_rows(role, gemm));
    }
  }
  EXPECT_TRUE(recipe.has_four_bits() && recipe.is_random());
  EXPECT_TRUE(Recipe(Nvfp4Scaling{.ms_eden = true, .disable_rht = true}).is_random());
  const Recipe plain = Nvfp4Scaling{.ms_eden = true, .disable_rht = true, .disable_stochastic_rounding = true};
  EXPECT_FALSE(plain.is_random());
  EXPECT_THAT(([] { Recipe(Nvfp4Scaling{.four_over_six = true, .ms_eden = true}); }),
              ThrowsMessage<std::invalid_argument>(HasSubstr("expected four_over_six or ms_eden, got both")));
}

TEST(Recipe, Nvfp4LeavesOutWhatIsDisabled) {
  const Recipe plain =
      Nvfp4Scaling{.disable_rht = true, .disable_stochastic_rounding = true, .disable_2d_quantization = true};
  EXPECT_FALSE(plain.is_random());
  EXPECT_EQ(plain.operand(Role::kWeight, GemmKind::kGradInput).granularity, kNvfp4Block);
  EXPECT_TRUE(Recipe(Nvfp4Scaling{.disable_rht = true}).is_random());
  EXPECT_TRUE(Recipe(Nvfp4Scaling{.disable_stochastic_rounding = true}).is_random());
  EXPECT_FALSE(Recipe(Nvfp4Scaling{.backward_override = BackwardOverride::kHighPrecision}).is_random());
  EXPECT_FALSE(Recipe(Nvfp4Scaling{.override_linear_precision = {true, true, true}}).has_four_bits());
}

TEST(Recipe, Mxfp4HasGradientsOfMxfp8) {
  const Recipe recipe = by_name("mxfp4"), wide = by_name("mxfp8");
  for (const auto& [role, gemm] : {std::pair{Role::kInput, GemmKind::kOutput}, {Role::kWeight, GemmKind::kGradInput}}) {
    const OperandRecipe operand = recipe.operand(role, gemm);
    EXPECT_EQ(operand.format, Format::kE2m1);
    EXPECT_EQ(operand.granularity, kMxBlock);
    EXPECT_EQ(operand.scaling, format::Fp4Scaling::kMxfp4);
    EXPECT_EQ(Recipe(Mxfp4Scaling{.rounding = ScaleRounding::kDown}).operand(role, gemm).scaling,
              format::Fp4Scaling::kMxfp4Floor);
  }
  for (GemmKind gemm : {GemmKind::kGradInput, GemmKind::kGradWeight}) {
    EXPECT_EQ(recipe.stored_operand(Role::kGradOutput, gemm), wide.stored_operand(Role::kGradOutput, gemm));
  }
  EXPECT_TRUE(recipe.has_four_bits());
  EXPECT_FALSE(recipe.is_random());
}

TEST(Recipe, OperandsKnowWhichDimensionIsReduced) {
  EXPECT_FALSE(reduces_over_rows(Role::kInput, GemmKind::kOutput));
  EXPECT_FALSE(reduces_over_rows(Role::kWeight, GemmKind::kOutput));
  EXPECT_FALSE(reduces_over_rows(Role::kGradOutput, GemmKind::kGradInput));
  EXPECT_TRUE(reduces_over_rows(Role::kWeight, GemmKind::kGradInput));
  EXPECT_TRUE(reduces_over_rows(Role::kInput, GemmKind::kGradWeight));
  EXPECT_TRUE(reduces_over_rows(Role::kGradOutput, GemmKind::kGradWeight));
}

TEST(Recipe, OneSetOfCodesServesBothProductsOnlyWithoutADirection) {
  for (Role role : kRoles) {
    EXPECT_TRUE(by_name("fp8").shares_codes(role));
    EXPECT_TRUE(by_name("fp8-current").shares_codes(role));
    EXPECT_FALSE(by_name("fp8-row").shares_codes(role));
    EXPECT_FALSE(by_name("mxfp8").shares_codes(role));
    EXPECT_FALSE(by_name("bf16").shares_codes(role));
    EXPECT_EQ(by_name("fp8-block").shares_codes(role), role == Role::kWeight);
  }
  const Recipe overridden = DelayedScaling{.override_linear_precision = {.grad_weight = true}};
  EXPECT_FALSE(overridden.shares_codes(Role::kInput));
  EXPECT_TRUE(overridden.shares_codes(Role::kWeight));
}

TEST(Recipe, EachProductMayHaveAScalingOfItsOwn) {
  const Recipe recipe(ProductScalings{{Nvfp4Scaling{}, DelayedScaling{}, HighPrecision{Format::kBf16}}, {0, 1, 2}});
  EXPECT_TRUE(recipe.is_mixed());
  EXPECT_EQ(recipe.name(), "mixed");
  EXPECT_EQ(recipe.operand(Role::kWeight, GemmKind::kOutput).format, Format::kE2m1);
  EXPECT_EQ(recipe.operand(Role::kWeight, GemmKind::kGradInput).format, Format::kE4m3);
  EXPECT_EQ(recipe.operand(Role::kGradOutput, GemmKind::kGradInput).format, Format::kE5m2);
  EXPECT_EQ(recipe.operand(Role::kInput, GemmKind::kGradWeight).format, Format::kBf16);
  EXPECT_TRUE(recipe.high_precision(GemmKind::kGradWeight));
  EXPECT_FALSE(recipe.high_precision());
  EXPECT_NE(recipe.delayed(), nullptr);
  EXPECT_FALSE(recipe.shares_codes(Role::kWeight));
  EXPECT_FALSE(by_name("nvfp4").is_mixed());
}

TEST(Recipe, ScalingsOfProductsThatDoNotGoTogetherAreAnError) {
  const auto make = [](std::vector<Scaling> scalings) {
    return [scalings] { Recipe(ProductScalings{scalings, {0, 1, 0}}); };
  };
  EXPECT_THAT(make({DelayedScaling{}, HighPrecision{Format::kFp16}}),
              ThrowsMessage<std::invalid_argument>(HasSubstr("one high-precision format")));
  EXPECT_THAT(make({DelayedScaling{.backward_override = BackwardOverride::kDequantized}, Mxfp8{}}),
              ThrowsMessage<std::invalid_argument>(HasSubstr("without backward_override")));
  EXPECT_THAT(make({DelayedScaling{}, CurrentScaling{}}),
              ThrowsMessage<std::invalid_argument>(HasSubstr("one scale for a tensor")));
  EXPECT_NO_THROW(make({DelayedScaling{}, BlockScaling{}})());
}

TEST(Recipe, OperandOutsideItsProductsIsAnError) {
  const Recipe recipe = by_name("fp8");
  EXPECT_THAT([&] { recipe.operand(Role::kWeight, GemmKind::kGradWeight); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("got weight in grad_weight")));
  EXPECT_THROW(recipe.operand(Role::kInput, GemmKind::kGradInput), std::invalid_argument);
  EXPECT_THROW(recipe.operand(Role::kGradOutput, GemmKind::kOutput), std::invalid_argument);
}

}  // namespace
}  // namespace plimsoll::recipe
