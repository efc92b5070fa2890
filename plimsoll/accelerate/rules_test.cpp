#include "plimsoll/accelerate/rules.h"

#include <gtest/gtest.h>

namespace plimsoll::acceleration {
namespace {

using format::Format, runtime::Isa;

constexpr Processor kZen3 = {Isa::kAvx2, true}, kZen4 = {Isa::kAvx512Bf16, true, true},
                    kZen5 = {Isa::kAvx512Bf16, true}, kIntel = {Isa::kAvx512, false},
                    kIntelWithAmx = {Isa::kAmx, false};

ProductCall square(Format format, int64_t size) { return {format, Layout::kNt, false, size, size, size}; }

TEST(AccelerationRules, AProcessorWithoutAMeasurementHasNone) {
  for (const Format format : {Format::kFp32, Format::kBf16, Format::kFp16})
    EXPECT_EQ(choose(square(format, 1024), {Isa::kPortable, true}), Outcome::kProcessor);
}

TEST(AccelerationRules, SixteenBitsWithoutTheirOwnInstructionsAreOurs) {
  for (const Processor& on : {kZen3, kIntel}) {
    EXPECT_EQ(choose(square(Format::kBf16, 768), on), Outcome::kReplaced);
    EXPECT_EQ(choose(square(Format::kFp16, 768), on), Outcome::kReplaced);
  }
}

TEST(AccelerationRules, Fp32IsOursWhereMklIsSlow) {
  EXPECT_EQ(choose(square(Format::kFp32, 768), kZen5), Outcome::kReplaced);
  EXPECT_EQ(choose(square(Format::kFp32, 768), kIntel), Outcome::kProcessor);
  EXPECT_EQ(choose(square(Format::kFp32, 768), kZen4), Outcome::kProcessor);
  EXPECT_EQ(choose(square(Format::kFp32, 768), kZen3), Outcome::kProcessor);
}

TEST(AccelerationRules, SizesWithoutAGainAreNot) {
  const ProductCall row = {Format::kFp16, Layout::kNt, false, 1, 768, 768};
  EXPECT_EQ(choose(row, kZen5), Outcome::kSize);
  EXPECT_EQ(choose({Format::kFp16, Layout::kNn, false, 1, 768, 768}, kZen5), Outcome::kReplaced);
  EXPECT_EQ(choose({Format::kBf16, Layout::kTn, false, 1024, 1024, 1024}, kZen5), Outcome::kReplaced);
  EXPECT_EQ(choose({Format::kBf16, Layout::kNt, false, 1024, 1024, 1024}, kZen5), Outcome::kSize);
}

TEST(AccelerationRules, FewRowsOfTransposedBf16AreOursOnZen5Alone) {
  const ProductCall nn = {Format::kBf16, Layout::kNn, false, 4, 1024, 1024};
  ProductCall nt = nn;
  nt.layout = Layout::kNt;
  EXPECT_EQ(choose(nn, kZen5), Outcome::kReplaced);
  EXPECT_EQ(choose(nn, kZen4), Outcome::kSize);
  EXPECT_EQ(choose(nt, kZen4), Outcome::kReplaced);
}

TEST(AccelerationRules, ABatchHasRulesOfItsOwn) {
  const ProductCall one = {Format::kBf16, Layout::kNt, false, 2, 768, 768};
  ProductCall batch = one;
  batch.is_batch = true;
  EXPECT_EQ(choose(one, kZen3), Outcome::kReplaced);
  EXPECT_EQ(choose(batch, kZen3), Outcome::kSize);
}

TEST(AccelerationRules, AttentionIsOursInSixteenBitsAndUnderACausalRule) {
  EXPECT_EQ(choose(AttentionCall{Format::kBf16, false, 1}, kZen5), Outcome::kReplaced);
  EXPECT_EQ(choose(AttentionCall{Format::kBf16, false, 1}, kZen3), Outcome::kSize);
  EXPECT_EQ(choose(AttentionCall{Format::kFp32, true, 128}, kZen3), Outcome::kReplaced);
  EXPECT_EQ(choose(AttentionCall{Format::kFp32, false, 128}, kZen3), Outcome::kSize);
  EXPECT_EQ(choose(AttentionCall{Format::kFp32, true, 128}, kIntel), Outcome::kProcessor);
}

TEST(AccelerationRules, APassHasItsOwnSmallestSize) {
  EXPECT_EQ(choose(PassCall{Pass::kGeluTanh, Format::kBf16, 4096}, kZen5), Outcome::kReplaced);
  EXPECT_EQ(choose(PassCall{Pass::kGeluTanh, Format::kBf16, 4095}, kZen5), Outcome::kSize);
  EXPECT_EQ(choose(PassCall{Pass::kGeluErf, Format::kBf16, 1 << 20}, kZen5), Outcome::kProcessor);
  EXPECT_EQ(choose(PassCall{Pass::kLayerNorm, Format::kBf16, 1 << 16}, kZen5), Outcome::kReplaced);
  EXPECT_EQ(choose(PassCall{Pass::kLayerNorm, Format::kBf16, 1 << 16}, kZen3), Outcome::kSize);
  EXPECT_EQ(choose(PassCall{Pass::kLayerNorm, Format::kBf16, 1 << 17}, kZen3), Outcome::kReplaced);
  EXPECT_EQ(choose(PassCall{Pass::kLayerNorm, Format::kFp32, 1 << 20}, kZen3), Outcome::kProcessor);
}

TEST(AccelerationRules, ProductsOfCodesAreOursOnEveryLevelThatWasMeasured) {
  for (const Processor& on : {kZen3, kZen5, kIntel, kIntelWithAmx}) {
    EXPECT_EQ(choose(ScaledProductCall{128, 768, 768}, on), Outcome::kReplaced);
    EXPECT_EQ(choose(ScaledProductCall{1, 16, 16}, on), Outcome::kSize);
  }
  EXPECT_EQ(choose(ScaledProductCall{128, 768, 768}, {Isa::kPortable, false}), Outcome::kProcessor);
}

TEST(AccelerationRules, WithTilesFp16IsOursAndLargeBf16Torchs) {
  EXPECT_EQ(choose(square(Format::kFp16, 768), kIntelWithAmx), Outcome::kReplaced);
  EXPECT_EQ(choose(square(Format::kBf16, 768), kIntelWithAmx), Outcome::kSize);
  EXPECT_EQ(choose(square(Format::kBf16, 128), kIntelWithAmx), Outcome::kReplaced);
  EXPECT_EQ(choose({Format::kBf16, Layout::kTn, false, 768, 768, 768}, kIntelWithAmx), Outcome::kReplaced);
  EXPECT_EQ(choose(square(Format::kFp32, 768), kIntelWithAmx), Outcome::kProcessor);
  EXPECT_EQ(choose(AttentionCall{Format::kBf16, true, 128}, kIntelWithAmx), Outcome::kReplaced);
  EXPECT_EQ(choose(AttentionCall{Format::kBf16, false, 512}, kIntelWithAmx), Outcome::kSize);
  EXPECT_EQ(choose(AttentionCall{Format::kFp16, false, 512}, kIntelWithAmx), Outcome::kReplaced);
}

TEST(AccelerationRules, GeluByErfInFp16IsOursOnAmdAlone) {
  EXPECT_EQ(choose(PassCall{Pass::kGeluErf, Format::kFp16, 1 << 20}, kZen5), Outcome::kReplaced);
  EXPECT_EQ(choose(PassCall{Pass::kGeluErf, Format::kFp16, 1 << 20}, kIntel), Outcome::kProcessor);
  EXPECT_EQ(choose(PassCall{Pass::kGeluErf, Format::kFp16, 1 << 20}, kIntelWithAmx), Outcome::kProcessor);
}

TEST(AccelerationRules, RmsNormOfOneTokenIsOurs) {
  for (const Processor& on : {kZen3, kZen5, kIntel, kIntelWithAmx}) {
    EXPECT_EQ(choose(PassCall{Pass::kRmsNorm, Format::kBf16, 768}, on), Outcome::kReplaced);
    EXPECT_EQ(choose(PassCall{Pass::kRmsNorm, Format::kBf16, 767}, on), Outcome::kSize);
  }
}

TEST(AccelerationRules, WithoutRulesAllIsOurs) {
  const ProductCall call = square(Format::kFp32, 1);
  set_rules(false);
  EXPECT_EQ(choose(call, {Isa::kPortable, false}), Outcome::kReplaced);
  set_rules(true);
  EXPECT_EQ(choose(call, {Isa::kPortable, false}), Outcome::kProcessor);
}

}  // namespace
}  // namespace plimsoll::acceleration
