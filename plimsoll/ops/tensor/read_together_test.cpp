#include "plimsoll/ops/tensor/read_together.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
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

TEST(ReadTogether, TakesAnySizesOfOneDtype) {
  const at::Tensor three = at::arange(3, at::kFloat), none = at::arange(0, at::kFloat),
                   one = at::full({1}, 7, at::kFloat);
  const std::vector<at::Tensor> read = read_together({three, none, one});
  ASSERT_EQ(read.size(), 3u);
  EXPECT_TRUE(read[0].equal(three) && read[1].equal(none) && read[2].equal(one));
}

TEST(ReadTogether, CountsAsOneReadOfTheHost) {
  const int64_t before = host_reads();
  read_together({});
  EXPECT_EQ(host_reads(), before);
  read_together({at::arange(8, at::kInt), at::arange(16, at::kByte)});
  EXPECT_EQ(host_reads(), before + 1);
}

}  // namespace
}  // namespace plimsoll::ops
