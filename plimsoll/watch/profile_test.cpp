#include "plimsoll/watch/profile.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>

namespace plimsoll::watch {
namespace {

void sleep_ms(int count) { std::this_thread::sleep_for(std::chrono::milliseconds(count)); }

TEST(Profile, NothingIsRecordedWithoutARecording) {
  Profile profile;
  const Span span("op");
  EXPECT_EQ(open_spans(), 0u);
  EXPECT_TRUE(profile.totals().empty());
  EXPECT_EQ(profile.seconds(), 0);
}

TEST(Profile, OwnTimesAddUpToTheRecording) {
  Profile profile;
  for (int step = 0; step < 2; ++step) {
    const Recording recording(profile);
    const Span forward("forward");
    sleep_ms(2);
    for (int call = 0; call < 3; ++call) {
      Span linear("linear", {.operations = 10, .bytes = 1});
      sleep_ms(1);
      const Span gemm("gemm");
      EXPECT_EQ(open_spans(), 3u);
      sleep_ms(4);
    }
  }
  ASSERT_EQ(profile.totals().size(), 3u);
  const SpanTotals &forward = profile.totals()[0], &linear = profile.totals()[1], &gemm = profile.totals()[2];
  EXPECT_EQ(linear.phase, "forward");
  EXPECT_EQ(linear.name, "linear");
  EXPECT_EQ(linear.calls, 6);
  EXPECT_EQ(linear.work.operations, 60);
  EXPECT_EQ(linear.work.bytes, 6);
  EXPECT_GE(forward.own_seconds, 0.004);
  EXPECT_GE(linear.own_seconds, 0.006);
  EXPECT_GE(gemm.own_seconds, 0.024);
  const double sum = forward.own_seconds + linear.own_seconds + gemm.own_seconds;
  EXPECT_LE(sum, profile.seconds());
  // All but the gaps between a recording and its outermost span, however long the thread stood still in one.
  int64_t outermost_ns = 0;
  for (const SpanEvent& event : profile.events()) {
    if (event.totals == 0) outermost_ns += event.end_ns - event.begin_ns;
  }
  EXPECT_NEAR(sum, 1e-9 * static_cast<double>(outermost_ns), 1e-9);
}

TEST(Profile, EventsNestInTime) {
  Profile profile;
  {
    const Recording recording(profile);
    const Span outer("outer");
    const Span inner("inner", {.bytes = 7});
  }
  ASSERT_EQ(profile.events().size(), 2u);
  const SpanEvent &inner = profile.events()[0], &outer = profile.events()[1];
  EXPECT_EQ(profile.totals()[inner.totals].name, "inner");
  EXPECT_EQ(inner.work.bytes, 7);
  EXPECT_LE(outer.begin_ns, inner.begin_ns);
  EXPECT_LE(inner.begin_ns, inner.end_ns);
  EXPECT_LE(inner.end_ns, outer.end_ns);
}

TEST(Profile, TheSameNameInTwoPhasesCountsApart) {
  Profile profile;
  const Recording recording(profile);
  for (const char* phase : {"forward", "backward"}) {
    const Span outer(phase);
    const Span inner("gemm");
  }
  EXPECT_EQ(profile.totals().size(), 4u);
}

TEST(Profile, WorkMayBeAddedLater) {
  Profile profile;
  const Recording recording(profile);
  {
    Span span("op", {.operations = 1});
    span.add({.operations = 2, .bytes = 5});
  }
  EXPECT_EQ(profile.totals()[0].work.operations, 3);
  EXPECT_EQ(profile.totals()[0].work.bytes, 5);
}

TEST(Profile, ASpanThatThrowsIsClosedAndOtherThreadsAreLeftAlone) {
  Profile profile;
  const Recording recording(profile);
  try {
    const Span span("op");
    std::thread([] { EXPECT_EQ(open_spans(), 0u); }).join();
    throw std::runtime_error("leaves the scope");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(open_spans(), 0u);
  EXPECT_EQ(profile.totals()[0].calls, 1);
}

TEST(Profile, InnerRecordingHoldsAndOuterComesBack) {
  Profile outer, inner;
  const Recording recording(outer);
  {
    const Recording nested(inner);
    const Span span("op");
  }
  EXPECT_TRUE(outer.totals().empty());
  EXPECT_EQ(inner.totals().size(), 1u);
  const Span span("op");
  EXPECT_EQ(outer.totals().size(), 1u);
}

}  // namespace
}  // namespace plimsoll::watch
