// The tests of kernels/gemm, which run on every level that there is, on a level that this processor does not have.
#include <gtest/gtest.h>

#include <vector>

#include "plimsoll/kernels/gemm/gemm_test_support.h"
#include "plimsoll/kernels/limits/limits.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/tile_check.h"
#include "tests/amx/tile_emulator.h"

namespace plimsoll::kernels::testing {

// In place of gemm_test_isas.cpp: nothing else to test.
std::vector<runtime::Isa> isas() { return {runtime::Isa::kAmx}; }

namespace {

TEST(EmulatedTiles, AreTheLevelInForce) {
  EXPECT_EQ(runtime::detected_isa(), runtime::Isa::kAmx) << runtime::amx_refusal();
  EXPECT_EQ(runtime::matmul_isa(), runtime::Isa::kAmx);
  EXPECT_LT(runtime::vector_matmul_isa(), runtime::Isa::kAmx);
}

// 2 x 2 tiles of 16 x 16, a step for 32 k; two passes over 16 k each for FP16.
TEST(EmulatedTiles, MultiplyNarrowOperandsAndAreGivenBack) {
  const int64_t m = 32, n = 32, k = 64;
  const auto products_of = [&](Format a_format, Format b_format) {
    const Operand a(m, k, a_format, 1), b(n, k, b_format, 2);
    const int64_t before = amx::tile_counts().products;
    product(a, b, m, n, k);
    EXPECT_EQ(amx::tile_counts().configured, 0);
    return amx::tile_counts().products - before;
  };
  EXPECT_EQ(products_of(Format::kBf16, Format::kBf16), 4 * 2);
  EXPECT_EQ(products_of(Format::kE4m3, Format::kE5m2), 4 * 2);
  EXPECT_EQ(products_of(Format::kFp16, Format::kFp16), 4 * 8);
  EXPECT_EQ(products_of(Format::kFp32, Format::kBf16), 0);
}

TEST(EmulatedTiles, AreNotTrustedWhereTheirProductsAreWrong) {
  amx::set_products_wrong(true);
  EXPECT_FALSE(runtime::tiles_multiply_as_defined());
  amx::set_products_wrong(false);
  EXPECT_TRUE(runtime::tiles_multiply_as_defined());
}

TEST(EmulatedTiles, AreMeasured) {
  EXPECT_GT(measure_tile_limit(0.001).rate(), 0);
  EXPECT_EQ(amx::tile_counts().configured, 0);
}

}  // namespace
}  // namespace plimsoll::kernels::testing
