#include "plimsoll/models/t5/relative_bias.h"

#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <span>

namespace plimsoll::models {
namespace {

// The first distance of each bucket, as T5's logarithm places them.
constexpr std::array<int64_t, 16> kEncoderStarts = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91};
constexpr std::array<int64_t, 32> kDecoderStarts = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                                    16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113};

int64_t bucket_from(std::span<const int64_t> starts, int64_t distance) {
  return std::upper_bound(starts.begin(), starts.end(), distance) - starts.begin() - 1;
}

TEST(RelativeBuckets, OfAnEncoderAreT5s) {
  const RelativeBuckets buckets;
  for (int64_t distance = -300; distance <= 300; ++distance) {
    const int64_t expected = bucket_from(kEncoderStarts, std::abs(distance)) + (distance > 0 ? 16 : 0);
    EXPECT_EQ(buckets.of(distance), expected) << distance;
  }
}

TEST(RelativeBuckets, OfADecoderAreT5s) {
  const RelativeBuckets buckets{.bidirectional = false};
  for (int64_t distance = -300; distance <= 300; ++distance) {
    EXPECT_EQ(buckets.of(distance), bucket_from(kDecoderStarts, std::max<int64_t>(-distance, 0))) << distance;
  }
}

TEST(RelativeBias, IsTheTablesEntryOfEachDistance) {
  const at::Tensor table = at::randn({32, 3});
  const auto entry = table.accessor<float, 2>();
  struct Size {
    int64_t queries, keys;
  };
  for (const bool bidirectional : {true, false}) {
    const RelativeBuckets buckets{.bidirectional = bidirectional};
    for (const Size size : {Size{1, 1}, Size{5, 5}, Size{1, 200}, Size{17, 40}, Size{200, 200}}) {
      const at::Tensor of_distances = relative_bias(table, buckets, size.queries, size.keys);
      ASSERT_EQ(of_distances.sizes(), at::IntArrayRef({1, 3, 1, size.queries + size.keys - 1}));
      const at::Tensor bias = relative_bias_matrix(of_distances, size.queries).contiguous();
      ASSERT_EQ(bias.sizes(), at::IntArrayRef({1, 3, size.queries, size.keys}));
      const auto value = bias.accessor<float, 4>();
      for (int64_t head = 0; head < 3; ++head) {
        for (int64_t query = 0; query < size.queries; ++query) {
          for (int64_t key = 0; key < size.keys; ++key) {
            const int64_t distance = key - (size.keys - size.queries + query);
            ASSERT_EQ(value[0][head][query][key], entry[buckets.of(distance)][head]) << query << " " << key;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace plimsoll::models
