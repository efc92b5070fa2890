#include "plimsoll/app/train/step_profile.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>

#include "plimsoll/io/testing.h"

namespace plimsoll::app {
namespace {

void sleep_ms(int count) { std::this_thread::sleep_for(std::chrono::milliseconds(count)); }

// 20 ms in a product, 5 ms in a pass over memory, 5 ms beside them, 5 ms outside of any phase.
void one_step() {
  {
    const watch::Span phase("forward");
    {
      const watch::Span span("gemm", {.operations = 2e7, .bytes = 1e6});
      sleep_ms(20);
    }
    {
      const watch::Span span("norm", {.bytes = 1e6});
      sleep_ms(5);
    }
    sleep_ms(5);
  }
  sleep_ms(5);
}

AllLimits ten_gflops_and_two_gbytes() {
  AllLimits limits;
  limits.fp32_gflops.all_threads = 10;
  limits.memory.copy.all_threads = 2;
  return limits;
}

class Profiled : public testing::Test {
 protected:
  void SetUp() override {
    for (int step = 0; step < 2; ++step) profile_.run(one_step);
    report_ = report_of(profile_, ten_gflops_and_two_gbytes());
  }

  // The row of an op. Sleeps may last longer than they were asked to, so that either op may come first.
  const ProfileRow& row(std::string_view op) const {
    return *std::find_if(report_.rows.begin(), report_.rows.end(), [&](const ProfileRow& row) { return row.op == op; });
  }

  StepProfile profile_{2};
  ProfileReport report_;
};

TEST_F(Profiled, RowsAddUpToTheStep) {
  EXPECT_EQ(report_.steps, 1);  // the first one warms up
  double sum = 0;
  for (const ProfileRow& row : report_.rows) sum += row.seconds;
  // Sums of four rows here and, for the rest of the step, there.
  EXPECT_NEAR(sum, report_.step_seconds, 8 * 0x1p-53 * report_.step_seconds);
  ASSERT_EQ(report_.rows.size(), 4u);
  EXPECT_GE(report_.rows[0].seconds, report_.rows[1].seconds);
  const double named = report_.rows[0].seconds + report_.rows[1].seconds;
  EXPECT_DOUBLE_EQ(report_.accounted_share, named / report_.step_seconds);
  EXPECT_GE(report_.rows[3].seconds, 0.005);
}

TEST_F(Profiled, ProductsAreHeldAgainstMultiplyAddsAndTheRestAgainstMemory) {
  const ProfileRow &gemm = row("gemm"), &norm = row("norm"), &rest = report_.rows[2];
  EXPECT_EQ(gemm.calls, 1);
  EXPECT_STREQ(gemm.unit, "GFLOP/s");
  EXPECT_DOUBLE_EQ(*gemm.rate, 0.02 / gemm.seconds);
  EXPECT_DOUBLE_EQ(gemm.share_of_limit, *gemm.rate / 10);
  EXPECT_STREQ(norm.unit, "GB/s");
  EXPECT_DOUBLE_EQ(norm.share_of_limit, 0.001 / norm.seconds / 2);
  EXPECT_EQ(rest.op, "(rest)");
  EXPECT_FALSE(rest.rate.has_value());
}

TEST_F(Profiled, TheTraceHoldsEverySpanOfTheProfiledSteps) {
  const io::TemporaryDirectory files;
  write_trace(files / "trace.json", profile_);
  const auto trace = nlohmann::json::parse(io::read_plainly(files / "trace.json"));
  const auto& events = trace.at("traceEvents");
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].at("name"), "gemm");
  EXPECT_EQ(events[0].at("cat"), "forward");
  EXPECT_EQ(events[0].at("args").at("operations"), 2e7);
  EXPECT_GE(events[0].at("dur").get<double>(), 20e3);
  EXPECT_EQ(events[2].at("ts"), 0);
}

TEST(StepProfile, TakesTwentyStepsAfterThree) {
  StepProfile profile(100);
  int ran = 0;
  for (int step = 0; step < 100; ++step) {
    const bool recorded = profile.run([&] {
      ++ran;
      const watch::Span span("phase");
      return watch::open_spans() == 1;
    });
    EXPECT_EQ(recorded, step >= 3 && step < 23) << step;
  }
  EXPECT_EQ(ran, 100);
  EXPECT_EQ(profile.steps(), 20);
}

TEST(StepProfile, TorchsOwnOperatorsShowInsideAPhase) {
  StepProfile profile(1);
  profile.run([] {
    at::Tensor x = at::ones({1000});
    const watch::Span phase("forward");
    x.add_(1);
    const watch::Span op("op");
    x.mul_(2);
  });
  const auto& totals = profile.profile().totals();
  ASSERT_EQ(totals.size(), 3u);
  EXPECT_EQ(totals[1].name, "aten::add_");
  EXPECT_EQ(totals[1].work.bytes, 2 * 4000);  // taken and given
  EXPECT_EQ(totals[2].name, "op");
}

}  // namespace
}  // namespace plimsoll::app
