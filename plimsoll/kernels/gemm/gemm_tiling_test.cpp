#include "plimsoll/kernels/gemm/gemm_tiling.h"

#include <gtest/gtest.h>

namespace plimsoll::kernels {
namespace {

using runtime::Processor;

TEST(GemmTiling, AProcessorThatNobodyMeasuredHasTheDefaults) {
  EXPECT_EQ(tilings_of({}), GemmTilings());
  EXPECT_EQ(tilings_of({Processor::Vendor::kOther, 6, 207}), GemmTilings());
  EXPECT_EQ(tilings_of({Processor::Vendor::kIntel, 7, 143}), GemmTilings());
  EXPECT_EQ(tilings_of({Processor::Vendor::kIntel, 6, 142}), GemmTilings());
}

TEST(GemmTiling, ADesignHasItsRow) {
  const GemmTilings sapphire_rapids = tilings_of({Processor::Vendor::kIntel, 6, 143});
  EXPECT_NE(sapphire_rapids, GemmTilings());
  EXPECT_EQ(tilings_of({Processor::Vendor::kIntel, 6, 207}), sapphire_rapids);
  const GemmTilings genoa = tilings_of({Processor::Vendor::kAmd, 25, 17});
  EXPECT_NE(genoa, GemmTilings());
  EXPECT_EQ(tilings_of({Processor::Vendor::kAmd, 25, 1}), GemmTilings());  // Zen 3, of the same family
}

TEST(GemmTiling, EverySizeOfEveryProcessorIsOneThatAProductTakes) {
  for (const Processor::Vendor vendor :
       {Processor::Vendor::kOther, Processor::Vendor::kIntel, Processor::Vendor::kAmd}) {
    for (int family = 0; family < 32; ++family) {
      for (int model = 0; model < 256; ++model) {
        const GemmTilings tilings = tilings_of({vendor, family, model});
        for (const GemmTiling& each : {tilings.fp32, tilings.pairs, tilings.tiles, tilings.split}) {
          ASSERT_TRUE(each.k_block > 0 && each.k_block % 64 == 0) << family << ", " << model;
          ASSERT_GT(each.a_kib, 0) << family << ", " << model;
        }
      }
    }
  }
}

TEST(GemmTiling, TheInnermostScopeIsInForce) {
  const GemmTilings before = gemm_tilings(), outer = {.fp32 = {64, 1}}, inner = {.tiles = {128, 2}};
  {
    const ScopedGemmTilings first(outer);
    EXPECT_EQ(gemm_tilings(), outer);
    {
      const ScopedGemmTilings second(inner);
      EXPECT_EQ(gemm_tilings(), inner);
    }
    EXPECT_EQ(gemm_tilings(), outer);
  }
  EXPECT_EQ(gemm_tilings(), before);
  EXPECT_EQ(before, tilings_of(runtime::processor()));
}

}  // namespace
}  // namespace plimsoll::kernels
