#include "plimsoll/runtime/tile_check.h"

#include <gtest/gtest.h>

#include <bit>

namespace plimsoll::runtime {
namespace {

uint16_t bf16(float x) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16); }

struct Tiles {
  uint16_t a[16 * 32], b[16 * 32];
  float sum[256];
};

TEST(TileDefinition, IsTheProductWhereNothingRounds) {
  Tiles tiles;
  for (int i = 0; i < 512; ++i) {
    tiles.a[i] = bf16(static_cast<float>(i % 13 - 6));
    tiles.b[i] = bf16(static_cast<float>(i % 7 - 3));
  }
  for (int i = 0; i < 256; ++i) tiles.sum[i] = static_cast<float>(i);
  multiply_tile_defined({tiles.a, tiles.b, tiles.sum});
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 16; ++column) {
      int expected = row * 16 + column;
      for (int k = 0; k < 32; ++k) {
        expected += ((row * 32 + k) % 13 - 6) * (((k / 2 * 16 + column) * 2 + k % 2) % 7 - 3);
      }
      EXPECT_EQ(tiles.sum[row * 16 + column], static_cast<float>(expected)) << row << ", " << column;
    }
  }
}

// One product each: what goes in, what comes out, what is added to.
TEST(TileDefinition, TakesSubnormalsAsZero) {
  Tiles tiles = {};
  const float smallest = 0x1p-126f, subnormal = 0x1p-127f;
  tiles.a[0] = bf16(subnormal);
  tiles.a[32] = bf16(smallest);
  tiles.a[64] = bf16(smallest);
  tiles.b[0] = bf16(4.0f);
  tiles.b[2] = bf16(0.5f);
  tiles.sum[33] = subnormal;
  multiply_tile_defined({tiles.a, tiles.b, tiles.sum});
  EXPECT_EQ(tiles.sum[0], 0.0f);           // 2^-127 * 4
  EXPECT_EQ(tiles.sum[16], 4 * smallest);  // 2^-126 * 4
  EXPECT_EQ(tiles.sum[17], 0.0f);          // 2^-126 / 2
  EXPECT_EQ(tiles.sum[33], 0.0f);          // 2^-127 + 2^-126 / 2
}

// 1 + 2^-24 rounds to 1 in a chain, in two it does not.
TEST(TileDefinition, SumsTheTwoOfAPairApart) {
  Tiles tiles = {};
  const float values[4] = {1.0f, 0x1p-24f, 0x1p-24f, 0x1p-24f};  // pairs (1, u), (u, u)
  for (int k = 0; k < 4; ++k) {
    tiles.a[k] = bf16(values[k]);
    tiles.b[k / 2 * 32 + k % 2] = bf16(1.0f);
  }
  multiply_tile_defined({tiles.a, tiles.b, tiles.sum});
  EXPECT_EQ(tiles.sum[0], 1.0f + 0x1p-23f);  // (1 + u) + (u + u), not ((1 + u) + u) + u
}

}  // namespace
}  // namespace plimsoll::runtime
