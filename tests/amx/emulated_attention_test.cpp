// The tests of kernels/attention on a level that this processor does not have.
#include <gtest/gtest.h>

#include <vector>

#include "plimsoll/kernels/attention/attention_kernel.h"
#include "plimsoll/kernels/attention/attention_test_support.h"
#include "plimsoll/runtime/cpu.h"
#include "tests/amx/tile_emulator.h"

namespace plimsoll::kernels::testing {

// In place of attention_test_isas.cpp: nothing else to test.
std::vector<runtime::Isa> attention_isas() { return {runtime::Isa::kAmx}; }

namespace {

int64_t products_of(const AttentionCase& c) {
  const AttentionProblem problem(c);
  AttentionResult result(c);
  const int64_t before = amx::tile_counts().products;
  run_forward(problem, result);
  EXPECT_EQ(amx::tile_counts().configured, 0);
  return amx::tile_counts().products - before;
}

TEST(EmulatedAttention, MultipliesPairsOfManyQueriesAndGivesTilesBack) {
  AttentionCase c = {.shape = shape_of(64, 64, 64), .format = Format::kBf16};
  EXPECT_EQ(attention_isa(Format::kBf16, Format::kBf16), runtime::Isa::kAmx);
  // Two heads, two products of 64 x 64 x 64, 16 x 16 x 32 each time.
  EXPECT_EQ(products_of(c), 2 * 2 * 4 * 4 * 2);
  c.shape.queries = 8;
  EXPECT_EQ(products_of(c), 0);
  c = {.shape = shape_of(64, 64, 64), .format = Format::kFp16};
  EXPECT_EQ(products_of(c), 0);
}

}  // namespace
}  // namespace plimsoll::kernels::testing
