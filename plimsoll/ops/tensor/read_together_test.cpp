#include "plimsoll/ops/tensor/read_together.h"

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

namespace plimsoll::ops {
namespace {

TEST(ReadTogether, GivesEachTensorBack) {
  const at::Tensor counts = at::arange(8, at::kInt), bytes = at::arange(48, at::kByte), none = at::arange(0, at::kByte);
  const std::vector<at::Tensor> read = read_together({counts, none, bytes.narrow(0, 16, 32), counts});
  ASSERT_EQ(read.size(), 4u);
  EXPECT_TRUE(read[0].equal(counts) && read[3].equal(counts));
  EXPECT_TRUE(read[1].equal(none));
  EXPECT_TRUE(read[2].equal(bytes.narrow(0, 16, 32)));
  EXPECT_TRUE(read_together({}).empty());
}

}  // namespace
}  // namespace plimsoll::ops
