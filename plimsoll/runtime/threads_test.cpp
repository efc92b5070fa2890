#include "plimsoll/runtime/threads.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <iterator>
#include <vector>

#include "plimsoll/runtime/team.h"
#include "plimsoll/runtime/threads_testing.h"

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

TEST(ParallelFor, ARangeThatStandsStillHoldsUpNoOther) {
  const testing::ScopedThreads threads(2);
  constexpr int64_t kCount = 16, kStill = kCount / 2;  // the first range of the second thread
  std::atomic<int64_t> others = 0;
  bool all_came = false;
  parallel_for(kCount, 1, [&](int64_t begin, int64_t end) {
    others += end - begin;
    if (begin > kStill || end <= kStill) return;
    EXPECT_EQ(end - begin, 1);
    for (int i = 0; i < 100'000 && others.load() < kCount; ++i) usleep(1000);
    all_came = others.load() == kCount;
  });
  EXPECT_TRUE(all_came);
}

// Numbers that a child writes about itself, or nothing where it has not ended after five minutes.
std::vector<int64_t> report_of_child(const std::function<std::vector<int64_t>()>& body) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::vector<int64_t> report = body();
    const auto bytes = report.size() * sizeof(int64_t);
    _exit(write(ends[1], report.data(), bytes) == static_cast<ssize_t>(bytes) ? 0 : 1);
  }
  close(ends[1]);
  std::vector<int64_t> report(8);
  pollfd waited{.fd = ends[0], .events = POLLIN, .revents = 0};
  const bool came = poll(&waited, 1, 300'000) == 1;
  const ssize_t bytes = came ? read(ends[0], report.data(), report.size() * sizeof(int64_t)) : 0;
  close(ends[0]);
  if (!came) kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  report.resize(static_cast<size_t>(std::max<ssize_t>(bytes, 0)) / sizeof(int64_t));
  return report;
}

int64_t sum_of_range(int64_t count) {
  std::atomic<int64_t> total = 0;
  parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) total += i;
  });
  return total.load();
}

TEST(ParallelFor, AForkedChildOfAProcessWithThreadsRunsOnOne) {
  const int before = threads();
  set_threads(3);
  const int64_t expected = sum_of_range(1000);  // the pool has its threads from here on
  for (int generation = 0; generation < 3; ++generation) {
    const auto body = [] {
      const int64_t at_first = threads(), sum = sum_of_range(1000);
      set_threads(3);  // by a library that does not know
      int64_t team = 0;
      run_team([&](const Team& each) { team = each.size(); });
      return std::vector<int64_t>{at_first, sum, threads(), sum_of_range(1000), team, omp_get_max_threads()};
    };
    EXPECT_EQ(report_of_child(body), (std::vector<int64_t>{1, expected, 1, expected, 1, 3}));
    EXPECT_EQ(threads(), 3) << "in the parent";
    EXPECT_EQ(sum_of_range(1000), expected);
  }
  set_threads(before);
}

TEST(ParallelFor, AForkedChildOfTheChildRunsOnOneToo) {
  const int before = threads();
  set_threads(2);
  sum_of_range(100);
  const auto grandchild = [] {
    return report_of_child([] { return std::vector<int64_t>{threads(), sum_of_range(100)}; });
  };
  EXPECT_EQ(report_of_child(grandchild), (std::vector<int64_t>{1, 4950}));
  set_threads(before);
}

// Threads of the process.
int64_t count_of_threads() { return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}); }
const int64_t kThreadsAtStart = count_of_threads();

// A pool's threads end on their own, some time after end_threads().
void wait_for_threads(int64_t count) {
  for (int i = 0; i < 100'000 && count_of_threads() > count; ++i) usleep(1000);
}

TEST(Threads, StartBeforeTheyAreNeededAndEndWhenAsked) {
  const int before = threads();
  set_threads(3);
  end_threads();
  const int64_t others = kThreadsAtStart;
  wait_for_threads(others);
  start_threads();
  EXPECT_EQ(count_of_threads(), others + 2);
  EXPECT_EQ(sum_of_range(1000), 499500);
  EXPECT_EQ(count_of_threads(), others + 2);
  end_threads();
  wait_for_threads(others);
  EXPECT_EQ(count_of_threads(), others);
  EXPECT_EQ(sum_of_range(1000), 499500);
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
