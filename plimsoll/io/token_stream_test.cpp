#include "plimsoll/io/token_stream.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include <set>

#include "plimsoll/io/error.h"
#include "plimsoll/io/permutation.h"
#include "plimsoll/io/testing.h"

namespace plimsoll::io {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// Text whose bytes count upwards, so a window of context 4 is known by its first two bytes.
TokenStream stream_of(int64_t bytes, int64_t context, uint64_t seed = 1) {
  const TemporaryDirectory directory;
  std::string text;
  for (int64_t i = 0; i < bytes; ++i) text += static_cast<char>(i % 256);
  write_plainly(directory / "text", text);
  return {Text({directory / "text"}), context, seed};
}

TEST(Permutation, VisitsEachIndexOnce) {
  for (const int64_t count : {1, 2, 3, 4, 5, 17, 64, 65, 1000}) {
    const Permutation order(count, 7, 0);
    std::set<int64_t> seen;
    for (int64_t i = 0; i < count; ++i) seen.insert(order(i));
    EXPECT_EQ(static_cast<int64_t>(seen.size()), count);
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), count - 1);
  }
}

TEST(Permutation, SeedAndRoundChangeTheOrder) {
  const auto order = [](uint64_t seed, uint64_t round) {
    std::vector<int64_t> result;
    for (int64_t i = 0; i < 100; ++i) result.push_back(Permutation(100, seed, round)(i));
    return result;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(2, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
}

TEST(Permutation, LeavesNoTraceOfTheInputOrder) {
  // Mean of |order(i) - i| over a random permutation of n is n / 3, with a standard deviation below n / (3 sqrt(n))
  // * 1.5.
  constexpr int64_t kCount = 10'000;
  const Permutation order(kCount, 3, 0);
  double distance = 0;
  for (int64_t i = 0; i < kCount; ++i) distance += static_cast<double>(std::abs(order(i) - i)) / kCount;
  EXPECT_NEAR(distance, kCount / 3.0, 5 * kCount / 200.0);
}

TEST(WindowSplit, EveryWindowIsInOnePart) {
  for (int64_t windows = 2; windows < 3000; windows += 1 + windows / 7) {
    const WindowSplit split(windows);
    std::set<int64_t> seen;
    for (int64_t i = 0; i < split.training_count(); ++i) seen.insert(split.training(i));
    for (int64_t i = 0; i < split.validation_count(); ++i) seen.insert(split.validation(i));
    EXPECT_GE(split.training_count(), 1);
    EXPECT_GE(split.validation_count(), 1);
    EXPECT_EQ(static_cast<int64_t>(seen.size()), windows);
    EXPECT_EQ(*seen.rbegin(), windows - 1);
  }
}

TEST(TokenStream, WindowsAreRunsOfTheText) {
  TokenStream stream = stream_of(1000, 4);
  const at::Tensor batch = stream.next(8);
  ASSERT_EQ(batch.sizes(), (std::vector<int64_t>{8, 5}));
  for (int64_t row = 0; row < 8; ++row) {
    EXPECT_EQ(batch[row][0].item<int64_t>() % 4, 0);
    for (int64_t i = 1; i < 5; ++i) {
      EXPECT_EQ(batch[row][i].item<int64_t>(), (batch[row][0].item<int64_t>() + i) % 256);
    }
  }
}

TEST(TokenStream, AnEpochVisitsEachTrainingWindowOnceAndNoHeldOutOne) {
  TokenStream stream = stream_of(241, 4);  // 60 windows
  EXPECT_EQ(stream.training_windows() + stream.validation_windows(), 60);
  std::set<int64_t> starts;
  const at::Tensor epoch = stream.next(stream.training_windows());
  for (int64_t i = 0; i < epoch.size(0); ++i) starts.insert(epoch[i][0].item<int64_t>());
  EXPECT_EQ(static_cast<int64_t>(starts.size()), stream.training_windows());
  const at::Tensor held_out = stream.validation(0, stream.validation_windows(), stream.validation_windows());
  for (int64_t i = 0; i < held_out.size(0); ++i) EXPECT_EQ(starts.count(held_out[i][0].item<int64_t>()), 0u);
  EXPECT_FALSE(at::equal(stream.next(stream.training_windows()), epoch));
}

TEST(TokenStream, GoesOnWhereAnotherStood) {
  TokenStream first = stream_of(1000, 4), second = stream_of(1000, 4);
  first.next(300);  // into the second epoch
  second.seek(first.cursor());
  EXPECT_TRUE(at::equal(first.next(100), second.next(100)));
}

TEST(TokenStream, OrderDoesNotDependOnTheBatch) {
  TokenStream one = stream_of(1000, 4), four = stream_of(1000, 4);
  const at::Tensor at_once = four.next(4);
  EXPECT_TRUE(at::equal(at::cat({one.next(1), one.next(2), one.next(1)}), at_once));
}

TEST(TokenStream, ShortTextIsAnError) {
  EXPECT_THAT([] { stream_of(8, 4); }, ThrowsMessage<Error>(HasSubstr("expected at least 9 tokens")));
  EXPECT_THAT([] { stream_of(0, 4); }, ThrowsMessage<Error>(HasSubstr("got 0 bytes")));
  EXPECT_EQ(stream_of(9, 4).training_windows(), 1);
}

TEST(TokenStream, CursorOfAnotherTextIsAnError) {
  TokenStream stream = stream_of(100, 4);
  EXPECT_THROW(stream.seek({.epoch = 0, .index = 25}), Error);
  EXPECT_THROW(stream.seek({.epoch = -1, .index = 0}), Error);
}

}  // namespace
}  // namespace plimsoll::io
