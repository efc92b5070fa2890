// A process that is killed at any moment of saving a step that is there already.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <cstdlib>

#include "plimsoll/io/checkpoint.h"
#include "plimsoll/io/process_testing.h"
#include "plimsoll/io/testing.h"

namespace plimsoll::io {
namespace {

Checkpoint uniform_checkpoint(double value) {
  return {.step = 7,
          .sections = {{"model", {{"weight", at::full({10}, value)}}}, {"optimizer", {{"m", at::full({20}, value)}}}},
          .state = {{"value", value}}};
}

// The value that a checkpoint has everywhere.
double value_of(const Checkpoint& checkpoint) {
  const double value = checkpoint.state.at("value").get<double>();
  EXPECT_TRUE(at::equal(checkpoint.sections.at("model").at("weight"), at::full({10}, value)));
  EXPECT_TRUE(at::equal(checkpoint.sections.at("optimizer").at("m"), at::full({20}, value)));
  return value;
}

class SavingAStepAgain : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!can_trace()) GTEST_SKIP() << "a process may not trace its children here";
  }
  static bool can_exchange() { return GetParam(); }

  // False if it is done before it can be killed.
  static bool is_killed(const std::filesystem::path& run, int count) {
    return killed_at_change(count, [&] {
      if (!can_exchange()) forbid_exchange();
      save_checkpoint(run, uniform_checkpoint(2));
      remove_old_checkpoints(run, 7, 3);
    });
  }
};

TEST_P(SavingAStepAgain, LeavesOneOfTheTwoWholeWheneverItIsKilled) {
  std::set<double> found;
  int count = 0;
  for (bool killed = true; killed;) {
    const TemporaryDirectory run;
    save_checkpoint(run.path(), uniform_checkpoint(1));
    killed = is_killed(run.path(), ++count);
    const auto latest = load_latest_checkpoint(run.path());
    ASSERT_TRUE(latest) << "killed at change " << count << ": " << ::testing::PrintToString(names_in(run.path()));
    EXPECT_THAT(latest->refused, ::testing::IsEmpty()) << count;
    found.insert(value_of(latest->checkpoint));
    // The next one tidies up.
    save_checkpoint(run.path(), uniform_checkpoint(3));
    remove_old_checkpoints(run.path(), 7, 3);
    EXPECT_EQ(value_of(load_latest_checkpoint(run.path())->checkpoint), 3);
    EXPECT_THAT(names_in(run.path()), ::testing::IsSubsetOf({".lock", "step-00000007"})) << count;
  }
  EXPECT_THAT(found, ::testing::ElementsAre(1, 2));
  EXPECT_GT(count, 10);
}

// A second kill, in what follows upon the first.
TEST_P(SavingAStepAgain, LeavesOneWholeWhenItIsKilledTwice) {
  if (std::getenv("PLIMSOLL_NIGHTLY") == nullptr) GTEST_SKIP() << "takes a minute: make nightly";
  for (int first = 1, kills = 1; kills > 0; ++first) {
    kills = 0;
    for (int second = 1;; ++second) {
      const TemporaryDirectory run;
      save_checkpoint(run.path(), uniform_checkpoint(1));
      if (!is_killed(run.path(), first)) break;
      ++kills;
      const bool killed = is_killed(run.path(), second);
      const auto latest = load_latest_checkpoint(run.path());
      ASSERT_TRUE(latest) << first << ", " << second << ": " << ::testing::PrintToString(names_in(run.path()));
      value_of(latest->checkpoint);
      if (!killed) break;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Exchange, SavingAStepAgain, ::testing::Bool(),
                         [](const auto& with) { return with.param ? "Supported" : "Lacking"; });

}  // namespace
}  // namespace plimsoll::io
