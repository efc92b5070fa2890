#include "plimsoll/shard/average/averaging.h"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

namespace plimsoll::shard {
namespace {

TEST(Averaging, FactorsOfFairscale) {
  const struct {
    int64_t world_size;
    double predivide, postdivide;
  } table[] = {{1, 1, 1}, {2, 2, 1}, {3, 2, 1.5}, {4, 2, 2}, {8, 4, 2}, {16, 4, 4}};
  for (const auto& row : table) {
    const Averaging averaging = averaging_over(row.world_size);
    EXPECT_EQ(averaging.predivide, row.predivide) << row.world_size;
    EXPECT_EQ(averaging.postdivide, row.postdivide) << row.world_size;
  }
}

TEST(Averaging, OfTheUser) {
  EXPECT_EQ(averaging_over(6, 4).postdivide, 1.5);
  for (double wrong : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(averaging_over(6, wrong), std::invalid_argument) << wrong;
  }
}

}  // namespace
}  // namespace plimsoll::shard
