#include "plimsoll/runtime/overflow_traps.h"

#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <limits>

#if defined(__x86_64__) && defined(__linux__)
#include <xmmintrin.h>

#include "plimsoll/runtime/team.h"
#include "plimsoll/runtime/threads.h"
#include "plimsoll/runtime/threads_testing.h"

namespace plimsoll::runtime {
namespace {

constexpr int64_t kItems = 64;

// Squares each item; overflows at those that are large.
void square(std::array<volatile float, kItems>& items) {
  parallel_for(kItems, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      volatile float& item = items[static_cast<size_t>(i)];
      item = item * item;
    }
  });
}

std::array<volatile float, kItems> ones() {
  std::array<volatile float, kItems> items;
  for (volatile float& item : items) item = 1;
  return items;
}

TEST(OverflowTraps, CatchAnOverflowOnEachWorker) {
  const testing::ScopedThreads threads(4);
  for (size_t at = 0; at < kItems; at += 7) {
    OverflowTraps traps;
    auto items = ones();
    square(items);
    EXPECT_EQ(traps.take(), 0u);
    items[at] = 1e30f;
    square(items);
    EXPECT_NE(traps.take(), 0u) << "item " << at;
    EXPECT_EQ(traps.take(), 0u) << "taken once";
    EXPECT_EQ(items[at], std::numeric_limits<float>::infinity()) << "goes on as without traps";
  }
}

TEST(OverflowTraps, NothingIsCaughtWithoutThem) {
  auto items = ones();
  items[3] = 1e30f;
  square(items);
  EXPECT_EQ(overflow_log(), nullptr);
  const OverflowTraps traps;
  EXPECT_NE(overflow_log(), nullptr);
}

TEST(OverflowTraps, LeaveMxcsrAsItWas) {
  const testing::ScopedThreads threads(3);
  constexpr uint32_t kFlushAndDenormalsAreZero = 0x8040;
  std::array<uint32_t, 3> before{}, after{};
  const auto read = [](std::array<uint32_t, 3>& control) {
    run_team([&](const Team& team) { control[static_cast<size_t>(team.index())] = _mm_getcsr(); });
  };
  const uint32_t own = _mm_getcsr();
  _mm_setcsr(own | kFlushAndDenormalsAreZero);
  read(before);
  {
    OverflowTraps traps;
    auto items = ones();
    for (volatile float& item : items) item = 1e30f;
    square(items);
    EXPECT_NE(traps.take(), 0u);
  }
  read(after);
  EXPECT_EQ(_mm_getcsr(), own | kFlushAndDenormalsAreZero);
  _mm_setcsr(own);
  EXPECT_EQ(before, after);
}

TEST(OverflowTraps, GiveTheHandlerBack) {
  const auto theirs = +[](int) {};
  std::signal(SIGFPE, theirs);
  {
    const OverflowTraps outer;
    const OverflowTraps inner;
  }
  EXPECT_EQ(std::signal(SIGFPE, SIG_DFL), theirs);
}

}  // namespace
}  // namespace plimsoll::runtime
#endif
