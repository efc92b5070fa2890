#include "plimsoll/ops/scaling/rank_amaxes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace plimsoll::ops {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Two ranks: this one and another, which brings `other`: amaxes, after as many as it says it has.
class TwoRanks : public RankGroup {
 public:
  explicit TwoRanks(std::vector<int32_t> other) : other_(std::move(other)) {}

  int64_t size() const override { return 2; }
  void all_reduce_max(std::span<int32_t> values) const override {
    sizes.push_back(values.size());
    for (int32_t& value : values) {
      value = std::max(value, next_ < other_.size() ? other_[next_] : 0);
      ++next_;
    }
  }
  at::Tensor all_gather(const at::Tensor& x) const override { return x; }
  at::Tensor reduce_scatter(const at::Tensor& x) const override { return x; }
  at::Tensor all_reduce(const at::Tensor& x) const override { return x; }

  mutable std::vector<size_t> sizes;  // of the collectives

 private:
  std::vector<int32_t> other_;
  mutable size_t next_ = 0;
};

TwoRanks with_amaxes(const std::vector<float>& amaxes) {
  const auto count = static_cast<int32_t>(amaxes.size());
  std::vector<int32_t> message{count, -count};
  for (const float amax : amaxes) message.push_back(std::bit_cast<int32_t>(amax));
  return TwoRanks(std::move(message));
}

TEST(RankAmaxes, TheLargestWinsAndNothingHidesBehindIt) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const auto largest = [](float ours, float theirs) {
    return largest_amax(TwoRanks({std::bit_cast<int32_t>(theirs)}), AmaxSlot::of(ours)).read_on_host();
  };
  EXPECT_EQ(largest(3.0f, 2.0f), 3.0f);
  EXPECT_EQ(largest(3.0f, inf), inf);
  EXPECT_TRUE(std::isnan(largest(nan, inf)));
}

TEST(RankAmaxes, TravelInOneMessageOfOneSize) {
  for (const std::vector<float>& other : {std::vector<float>{1, 5}, std::vector<float>{9, 0}}) {
    const TwoRanks group = with_amaxes(other);
    std::vector<float> amaxes{4, 3};
    reduce_amaxes(group, amaxes);
    EXPECT_THAT(amaxes, ElementsAre(std::max(4.0f, other[0]), std::max(3.0f, other[1])));
    EXPECT_THAT(group.sizes, ElementsAre(kAmaxesAtOnce + 2));
  }
}

TEST(RankAmaxes, TheRestTakesASecondMessage) {
  std::vector<float> amaxes(kAmaxesAtOnce + 5), other(amaxes.size());
  std::iota(amaxes.begin(), amaxes.end(), 1.0f);
  std::iota(other.rbegin(), other.rend(), 1.0f);
  const std::vector<float> mine = amaxes;
  const TwoRanks group = with_amaxes(other);
  reduce_amaxes(group, amaxes);
  for (size_t i = 0; i < mine.size(); ++i) EXPECT_EQ(amaxes[i], std::max(mine[i], other[i])) << i;
  EXPECT_THAT(group.sizes, ElementsAre(kAmaxesAtOnce + 2, 5u));
}

TEST(RankAmaxes, AnotherNumberOfThemIsAnErrorAndNotAHang) {
  std::vector<float> amaxes{1, 2, 3};
  for (const size_t count : {size_t{0}, size_t{2}, kAmaxesAtOnce + 9}) {
    const TwoRanks group = with_amaxes(std::vector<float>(count, 1.0f));
    EXPECT_THAT([&] { reduce_amaxes(group, amaxes); }, ThrowsMessage<c10::Error>(HasSubstr("fp8_group: expected")));
    EXPECT_EQ(group.sizes.size(), 1u);
  }
  EXPECT_THAT(amaxes, ElementsAre(1, 2, 3));
}

}  // namespace
}  // namespace plimsoll::ops
