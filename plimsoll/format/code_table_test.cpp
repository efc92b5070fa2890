#include "plimsoll/format/code_table.h"

#include <gtest/gtest.h>

#include "plimsoll/format/format.h"

namespace plimsoll::format::testing {
namespace {

void expect_facts(const Layout& layout, Format format) {
  const CodeTable table(layout);
  EXPECT_EQ(table.value(0), 0.0);
  EXPECT_EQ(table.value(1), double{info(format).min_subnormal});
  EXPECT_EQ(table.value(1u << layout.mantissa_bits), double{info(format).min_normal});
  EXPECT_EQ(table.value(table.finite_codes() - 1), double{info(format).max_finite});
  for (uint32_t code = 0; code < table.finite_codes(); ++code) ASSERT_LT(table.value(code), table.value(code + 1));
}

TEST(CodeTable, AgreesWithTheFormatsFacts) {
  expect_facts(kE4m3Layout, Format::kE4m3);
  expect_facts(kE5m2Layout, Format::kE5m2);
  expect_facts(kE2m1Layout, Format::kE2m1);
  expect_facts(kFp16Layout, Format::kFp16);
  expect_facts(kBf16Layout, Format::kBf16);
}

TEST(CodeTable, RoundsKnownValues) {
  const CodeTable table(kE4m3Layout);
  EXPECT_EQ(table.nearest(1.0), 0x38u);
  EXPECT_EQ(table.nearest(1.0625), 0x38u);  // tie, down to even
  EXPECT_EQ(table.nearest(1.1875), 0x3au);  // tie, up to even
  EXPECT_EQ(table.nearest(1.06251), 0x39u);
  EXPECT_EQ(table.nearest(464.0), 0x7eu);  // tie with overflow, down to even
  EXPECT_EQ(table.nearest(464.1), 0x7fu);  // overflow
  EXPECT_EQ(table.nearest(1e30), 0x7fu);
  EXPECT_EQ(table.nearest(0x1p-10), 0u);  // tie, down to zero
  EXPECT_EQ(table.nearest(0x1.01p-10), 1u);
}

}  // namespace
}  // namespace plimsoll::format::testing
