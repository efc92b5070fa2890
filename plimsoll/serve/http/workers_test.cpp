#include "plimsoll/serve/http/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <stdexcept>

namespace plimsoll::serve {
namespace {

TEST(Workers, AnotherThreadStartsWhenAllAreBusyUpToTheLimit) {
  constexpr size_t kMost = 3;
  Workers workers(kMost);
  EXPECT_EQ(workers.threads(), 1U);
  std::latch begun(kMost), may_end(1);
  std::atomic<int> done = 0;
  for (size_t i = 0; i < kMost; ++i) {
    workers.enqueue([&] {
      begun.count_down();
      may_end.wait();
      ++done;
    });
  }
  begun.wait();  // all of them at once
  EXPECT_EQ(workers.threads(), kMost);
  EXPECT_FALSE(workers.is_crowded());
  workers.enqueue([&] { ++done; });
  EXPECT_TRUE(workers.is_crowded());
  EXPECT_EQ(workers.threads(), kMost);
  EXPECT_EQ(done, 0) << "the last waits for another's thread";
  may_end.count_down();
  workers.shutdown();
  EXPECT_EQ(done, 4);
}

TEST(Workers, TasksOneAfterAnotherShareThreads) {
  constexpr size_t kTasks = 200;
  Workers workers(kTasks + 1);
  for (size_t i = 0; i < kTasks; ++i) {
    std::latch done(1);
    workers.enqueue([&] { done.count_down(); });
    done.wait();
    std::this_thread::sleep_for(std::chrono::microseconds(500));  // in which most threads come to wait for the next
  }
  EXPECT_LT(workers.threads(), kTasks) << "one for each";
}

TEST(Workers, ATaskThatThrowsEndsNoOther) {
  Workers workers(1);
  std::atomic<bool> done = false;
  workers.enqueue([] { throw std::runtime_error("no memory"); });
  workers.enqueue([&] { done = true; });
  workers.shutdown();
  EXPECT_TRUE(done);
  EXPECT_EQ(workers.threads(), 1U);
}

TEST(Workers, TheirEndWaitsForAllTasks) {
  std::atomic<int> done = 0;
  {
    Workers workers(2);
    for (int i = 0; i < 50; ++i) workers.enqueue([&] { ++done; });
  }
  EXPECT_EQ(done, 50);
}

}  // namespace
}  // namespace plimsoll::serve
