#include "plimsoll/app/collective_report.h"

#include <gtest/gtest.h>

namespace plimsoll::app {
namespace {

constexpr int64_t kMillisecond = 1'000'000;

// Two steps: two sums that overlap, then one by itself that training waits for altogether.
watch::Transfers transfers() {
  return {
      {.name = "all_gather", .begin_ns = 5 * kMillisecond, .end_ns = 15 * kMillisecond, .bytes = 2e6},
      {.name = "all_reduce", .begin_ns = 0, .end_ns = 10 * kMillisecond, .waited_ns = 1 * kMillisecond, .bytes = 4e6},
      {.name = "all_reduce",
       .begin_ns = 20 * kMillisecond,
       .end_ns = 25 * kMillisecond,
       .waited_ns = 5 * kMillisecond,
       .bytes = 4e6}};
}

TEST(CollectiveReport, TimesThatOverlapCountOnceInTheStep) {
  const CollectiveReport report = collectives_of(transfers(), 2);
  EXPECT_DOUBLE_EQ(report.seconds, 0.010);  // 0 to 15 and 20 to 25 ms
  EXPECT_DOUBLE_EQ(report.waited_seconds, 0.003);
  EXPECT_DOUBLE_EQ(report.hidden_share(), 0.7);
  ASSERT_EQ(report.rows.size(), 2u);
  EXPECT_EQ(report.rows[0].name, "all_reduce");
  EXPECT_DOUBLE_EQ(report.rows[0].calls, 1);
  EXPECT_DOUBLE_EQ(report.rows[0].gigabytes, 0.004);
  EXPECT_DOUBLE_EQ(report.rows[0].seconds, 0.0075);
}

TEST(CollectiveReport, AProcessAloneHasNone) {
  const CollectiveReport report = collectives_of({}, 3);
  EXPECT_TRUE(report.rows.empty());
  EXPECT_EQ(report.hidden_share(), 0);
}

TEST(CollectiveReport, WhatOverlapsIsOnAnotherLineOfTheTrace) {
  nlohmann::json events = nlohmann::json::array();
  add_collectives(events, transfers(), 0);
  ASSERT_EQ(events.size(), 5u);  // and the names of two lines
  EXPECT_EQ(events[0].at("name"), "all_reduce");
  EXPECT_EQ(events[0].at("tid"), 2);
  EXPECT_EQ(events[1].at("name"), "all_gather");
  EXPECT_EQ(events[1].at("tid"), 3);
  EXPECT_EQ(events[1].at("ts"), 5000);
  EXPECT_EQ(events[2].at("tid"), 2);
  EXPECT_EQ(events[3].at("args").at("name"), "collectives");
}

}  // namespace
}  // namespace plimsoll::app
