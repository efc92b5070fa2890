#include "plimsoll/runtime/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace plimsoll::runtime {
namespace {

TEST(ParallelFor, VisitsEachIndexOnceForAnyThreadCount) {
  const int before = threads();
  for (int count : {1, 2, 3, 7}) {
    set_threads(count);
    for (int64_t size : {0, 1, 2, 63, 64, 65, 1001}) {
      for (int64_t grain : {1, 16, 5000}) {
        std::vector<std::atomic<int>> visits(static_cast<size_t>(size));
        parallel_for(size, grain, [&](int64_t begin, int64_t end) {
          EXPECT_EQ(begin % grain, 0);
          for (int64_t i = begin; i < end; ++i) visits[static_cast<size_t>(i)]++;
        });
        for (auto& visit : visits) EXPECT_EQ(visit.load(), 1);
      }
    }
  }
  set_threads(before);
}

TEST(ParallelFor, NestedCallsRunSerially) {
  std::atomic<int64_t> total = 0;
  parallel_for(4, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      parallel_for(10, 1, [&](int64_t b, int64_t e) { total += e - b; });
    }
  });
  EXPECT_EQ(total.load(), 40);
}

}  // namespace
}  // namespace plimsoll::runtime
