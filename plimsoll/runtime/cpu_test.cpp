#include "plimsoll/runtime/cpu.h"

#include <gtest/gtest.h>

namespace plimsoll::runtime {
namespace {

TEST(Isa, NamesParseBack) {
  for (Isa level : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
    EXPECT_EQ(parse_isa(name(level)), level);
  }
  EXPECT_EQ(parse_isa("avx1024"), std::nullopt);
}

TEST(Isa, ScopeLowersAndRestores) {
  const Isa before = isa();
  {
    ScopedIsa outer(Isa::kPortable);
    EXPECT_EQ(isa(), Isa::kPortable);
    EXPECT_FALSE(isa_is_automatic());
    ScopedIsa inner(Isa::kAmx);
    EXPECT_EQ(isa(), Isa::kPortable) << "a scope must not raise the level";
  }
  EXPECT_EQ(isa(), before);
}

TEST(Isa, NeverAboveTheProcessor) {
  EXPECT_LE(isa(), detected_isa());
  EXPECT_LE(matmul_isa(), isa());
  EXPECT_LE(vector_matmul_isa(), matmul_isa());
  EXPECT_LT(vector_matmul_isa(), Isa::kAmx);
}

TEST(Isa, IsNotRefusedWhereItIsGiven) { EXPECT_TRUE(detected_isa() < Isa::kAmx || amx_refusal().empty()); }

}  // namespace
}  // namespace plimsoll::runtime
