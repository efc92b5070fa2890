#include "plimsoll/kernels/gemm/gemm_plan.h"

#include <gtest/gtest.h>

namespace plimsoll::kernels {
namespace {

TEST(GemmPlan, KBlocksCoverKInOrder) {
  for (int64_t k = 0; k < 5000; k = k < 70 ? k + 1 : k + 37) {
    constexpr int64_t kLongest = 512;
    const KBlocks blocks(k, kLongest);
    int64_t end = 0;
    for (int64_t i = 0; i < blocks.count; ++i) {
      const Range block = blocks.block(i);
      EXPECT_EQ(block.begin, end);
      EXPECT_EQ(block.begin % 64, 0);
      EXPECT_LE(block.size(), kLongest);
      EXPECT_TRUE(block.size() > 0 || k == 0);
      end = block.end;
    }
    EXPECT_EQ(end, k);
  }
}

TEST(GemmPlan, PanelsOfAFillTheirBytes) {
  EXPECT_EQ(panels_in(384 << 10, 32 << 10), 12);
  EXPECT_EQ(panels_in(384 << 10, 200 << 10), 1);
  EXPECT_EQ(panels_in(384 << 10, 1 << 20), 1);
  EXPECT_EQ(panels_in(384 << 10, 0), 16);
}

TEST(GemmPlan, PackedPanelsDoNotOverlap) {
  for (int64_t k : {0, 1, 31, 600, 1025}) {
    for (Dword dword : {Dword::kFp32, Dword::kBf16Pair, Dword::kE4m3Quad}) {
      const PackedLayout layout = {k, 5, dword};
      for (int64_t panel = 0; panel < 5; ++panel) {
        // Decoding whole stored dwords goes up to three k too far.
        EXPECT_GE(layout.offset(0, panel + 1) - layout.offset(0, panel), dwords_of((k + 3) / 4 * 4, dword) * kBPitch);
        EXPECT_EQ(layout.offset(64, panel) - layout.offset(0, panel), dwords_of(64, dword) * kBPitch);
      }
      EXPECT_EQ(layout.dwords(), layout.offset(0, 5));
    }
  }
}

TEST(GemmPlan, GridDividesTheDimensionThatBalancesBest) {
  auto expect_grid = [](int64_t row_panels, int64_t column_panels, int64_t threads, int64_t rows, int64_t columns) {
    const Grid grid = choose_grid(row_panels, 14, column_panels, threads);
    EXPECT_EQ(grid.row_parts, rows) << row_panels << " x " << column_panels;
    EXPECT_EQ(grid.column_parts, columns) << row_panels << " x " << column_panels;
  };
  expect_grid(293, 24, 2, 2, 1);  // many tokens: each thread packs half of them
  expect_grid(1, 96, 2, 1, 2);    // one row panel: only columns can be divided
  expect_grid(3, 96, 2, 1, 2);    // two to one would leave a thread half idle
  expect_grid(96, 1, 7, 7, 1);
  expect_grid(1, 1, 8, 1, 1);
}

TEST(GemmPlan, FewPanelsArePackedTogether) {
  EXPECT_EQ(panels_at_a_time(0, 3), 3);
  EXPECT_EQ(panels_at_a_time(512 * kBPitch, 3), 3);
  EXPECT_EQ(panels_at_a_time(512 * kBPitch, 100000), 512);
  EXPECT_EQ(panels_at_a_time(int64_t{1} << 30, 100000), kFewestPackedPanels);
}

TEST(GemmPlan, PartsOfKAndTheirTilesAreWithinTheLimitOrAllOfKIsTaken) {
  int cut = 0;
  for (int64_t k_total : {0, 600, 16384, 20000, 151936, 4000000}) {
    const KBlocks k(k_total, 512);
    const int64_t panel_dwords = PackedLayout{k_total, 1, Dword::kBf16Pair}.panel_dwords();
    for (int64_t panels : {1, 18, 48, 100000}) {
      for (int64_t rows : {200, 2000, 9000}) {
        const PackedPart part = packed_at_a_time(k, Dword::kBf16Pair, rows * kTileColumns, panels);
        ASSERT_GE(part.panels, 1);
        ASSERT_GE(part.k_blocks, 1);
        EXPECT_LE(part.panels, panels);
        EXPECT_LE(part.k_blocks, k.count);
        if (part.k_blocks < k.count) {
          ++cut;
          EXPECT_LE(PackedLayout({part.k_blocks * k.length, part.panels, Dword::kBf16Pair}).dwords(), kPackedDwords);
          EXPECT_LE(part.panels * rows * kTileColumns, kPackedDwords);
        } else {
          EXPECT_EQ(part.panels, panels_at_a_time(panel_dwords, panels));
        }
      }
    }
  }
  EXPECT_GT(cut, 20);
}

TEST(GemmPlan, ThreadsTakeWholeProductsUnlessSomeWouldWait) {
  const int64_t large = 100 * kThreadGrain;
  EXPECT_TRUE(whole_products(8, large, 4));
  EXPECT_FALSE(whole_products(9, large, 4));
  EXPECT_TRUE(whole_products(31, large, 4));
  EXPECT_FALSE(whole_products(1, large, 2));
  EXPECT_TRUE(whole_products(3, kThreadGrain, 2));
}

}  // namespace
}  // namespace plimsoll::kernels
