#include "plimsoll/runtime/team.h"

#include <gtest/gtest.h>

#include <vector>

#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::runtime {
namespace {

class TeamTest : public ::testing::Test {
 protected:
  ~TeamTest() override { set_threads(before_); }

 private:
  int before_ = threads();
};

TEST_F(TeamTest, EveryThreadSeesWhatAllWroteBeforeTheyWaited) {
  constexpr int kSteps = 200;
  for (const int count : {1, 2, 3, 5}) {
    set_threads(count);
    std::vector<int> written(static_cast<size_t>(count)), wrong(static_cast<size_t>(count));
    run_team([&](const Team& team) {
      ASSERT_EQ(team.size(), count);
      const auto own = static_cast<size_t>(team.index());
      for (int step = 1; step <= kSteps; ++step) {
        written[own] = step;
        team.wait();
        for (const int value : written) wrong[own] += value != step;
        team.wait();
      }
    });
    EXPECT_EQ(written, std::vector<int>(static_cast<size_t>(count), kSteps));
    EXPECT_EQ(wrong, std::vector<int>(static_cast<size_t>(count), 0));
  }
}

TEST_F(TeamTest, KernelsRunOnTheirThreadAloneAndUnderTheScopeOfTheCaller) {
  set_threads(3);
  const ScopedIsa scope(Isa::kPortable);
  std::vector<int> threads_inside(3);
  std::vector<Isa> isa_inside(3, Isa::kAmx);
  run_team([&](const Team& team) {
    threads_inside[static_cast<size_t>(team.index())] = threads();
    isa_inside[static_cast<size_t>(team.index())] = isa();
  });
  EXPECT_EQ(threads_inside, std::vector<int>(3, 1));
  EXPECT_EQ(isa_inside, std::vector<Isa>(3, Isa::kPortable));
}

TEST_F(TeamTest, InsideAParallelRegionATeamIsItsThread) {
  set_threads(2);
  std::vector<int> sizes(2);
  parallel_for(2, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      run_team([&](const Team& team) {
        team.wait();
        sizes[static_cast<size_t>(i)] = team.size();
      });
    }
  });
  EXPECT_EQ(sizes, std::vector<int>(2, 1));
}

}  // namespace
}  // namespace plimsoll::runtime
