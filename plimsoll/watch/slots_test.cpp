#include "plimsoll/watch/slots.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

#include "plimsoll/runtime/threads.h"

namespace plimsoll::watch {
namespace {

using format::Format;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::string> names(const std::vector<Record>& records) {
  std::vector<std::string> list;
  for (const Record& record : records) list.push_back(record.name);
  return list;
}

TEST(Headroom, IsTheDistanceToTheLargestCodeInBits) {
  EXPECT_EQ(headroom_bits({.format = Format::kE4m3, .amax = 448}), 0);
  EXPECT_EQ(headroom_bits({.format = Format::kE4m3, .amax = 7, .inv_scale = 16}), 2);
  EXPECT_EQ(headroom_bits({.format = Format::kE5m2, .amax = 114688}), -1);
  EXPECT_EQ(headroom_bits({.format = Format::kFp16, .amax = 0}), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(headroom_bits({.format = Format::kFp16, .amax = kInf})));
}

TEST(Slots, WhatBecomesInfWhenItIsRoundedIsNotFinite) {
  EXPECT_FALSE(overflows({.format = Format::kFp16, .amax = std::nextafter(65520.0f, 0.0f)}));
  EXPECT_TRUE(overflows({.format = Format::kFp16, .amax = 65520}));
  EXPECT_TRUE(overflows({.format = Format::kBf16, .amax = std::numeric_limits<float>::max()}));
  EXPECT_FALSE(overflows({.format = Format::kFp32, .amax = std::numeric_limits<float>::max()}));
  EXPECT_FALSE(overflows({.format = Format::kE5m2, .amax = 1e6}));  // saturates
  EXPECT_TRUE(overflows({.format = Format::kE5m2, .amax = kNan}));
  Slots slots;
  slots.report("wo", {.format = Format::kFp16, .amax = 185000});
  EXPECT_EQ(slots.records().front().non_finite, 1);
  EXPECT_EQ(slots.records().front().amax, 185000);  // the bits that are missing stay known
  EXPECT_LT(slots.records().front().headroom_bits, -1);
}

TEST(Slots, KeepTheWorstOfAllCalls) {
  Slots slots;
  slots.report("fc1/input", {.format = Format::kE4m3, .amax = 7});
  slots.report("fc1/input", {.format = Format::kE4m3, .amax = 28});
  slots.report("fc1/input", {.format = Format::kE4m3, .amax = 14, .inv_scale = 2});
  const std::vector<Record> records = slots.records();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].name, "fc1/input");
  EXPECT_EQ(records[0].calls, 3);
  EXPECT_EQ(records[0].amax, 28);
  EXPECT_EQ(records[0].inv_scale, 2);
  EXPECT_EQ(records[0].headroom_bits, 4);
  EXPECT_EQ(records[0].non_finite, 0);
  EXPECT_EQ(records[0].first_non_finite_call, -1);
}

TEST(Slots, NonFiniteIsCountedAndHidesNoFiniteAmax) {
  Slots slots;
  slots.report("wo", {.format = Format::kFp16, .amax = 16376});
  slots.report("wo", {.format = Format::kFp16, .amax = kInf});
  slots.report("wo", {.format = Format::kFp16, .amax = kNan, .non_finite = 5});
  slots.report("wo", {.format = Format::kFp16, .amax = 1});
  const Record record = slots.records().front();
  EXPECT_EQ(record.non_finite, 6);
  EXPECT_EQ(record.first_non_finite_call, 1);
  EXPECT_EQ(record.amax, 16376);
  EXPECT_EQ(record.headroom_bits, 2);
}

TEST(Slots, WhatIsNeverFiniteHasNoHeadroom) {
  Slots slots;
  slots.report("weight of Inf", {.format = Format::kFp16, .amax = kInf});
  slots.report("weight of Inf", {.format = Format::kFp16, .amax = kNan});
  slots.report("finite at last", {.format = Format::kFp16, .amax = kInf});
  slots.report("finite at last", {.format = Format::kFp16, .amax = 16376});
  const std::vector<Record> records = slots.records();
  EXPECT_EQ(records[0].headroom_bits, 2);
  EXPECT_TRUE(std::isnan(records[1].headroom_bits));
  std::ostringstream out;
  write_json_lines(out, {records[1]});
  EXPECT_NE(out.str().find(R"("amax":null,"headroom_bits":null,"non_finite":2)"), std::string::npos) << out.str();
}

TEST(Slots, ListWhatIsNotFiniteAndThenTheLowestHeadroom) {
  Slots slots;
  slots.report("a", {.format = Format::kE4m3, .amax = 1});
  slots.report("b", {.format = Format::kE4m3, .amax = 400});
  slots.report("c", {.format = Format::kE4m3, .amax = 40});
  slots.report("zero", {.format = Format::kE4m3, .amax = 0});
  EXPECT_EQ(names(slots.worst(2)), (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(names(slots.worst(9)), (std::vector<std::string>{"b", "c", "a", "zero"}));
  slots.report("never finite", {.format = Format::kFp16, .amax = kInf});
  slots.report("a", {.format = Format::kE4m3, .amax = kNan});
  EXPECT_EQ(names(slots.worst(3)), (std::vector<std::string>{"never finite", "a", "b"}));
}

TEST(Slots, ListNonFiniteInTheOrderInWhichTheyAppeared) {
  Slots slots;
  for (const char* name : {"a", "b", "c"}) slots.report(name, {.amax = 1});
  slots.report("c", {.amax = kInf});
  slots.report("a", {.amax = kNan});
  slots.report("c", {.amax = kInf});
  EXPECT_EQ(names(slots.non_finite()), (std::vector<std::string>{"c", "a"}));
  slots.clear();
  EXPECT_TRUE(slots.records().empty());
}

// As if a device had them.
class Waiting : public Unread {
 public:
  explicit Waiting(std::vector<NamedObservation>& all) : all_(all) {}
  std::vector<NamedObservation> read() override { return std::exchange(all_, {}); }

 private:
  std::vector<NamedObservation>& all_;
};

TEST(Slots, ReadWhatWaitsBeforeWhatIsReportedOrAskedForNext) {
  std::vector<NamedObservation> waiting;
  Slots slots;
  slots.unread([&] { return std::make_unique<Waiting>(waiting); });
  waiting = {{"first", {.amax = kInf}}, {"twice", {.amax = 3}}};
  slots.report("second", {.amax = kInf});
  EXPECT_TRUE(waiting.empty());
  waiting = {{"third", {.amax = kNan}}};
  EXPECT_EQ(slots.report("twice", {.amax = 2}), 1);
  EXPECT_EQ(names(slots.non_finite()), (std::vector<std::string>{"first", "second", "third"}));
  waiting = {{"last", {.amax = 1}}};
  EXPECT_EQ(slots.records().size(), 5u);
  waiting = {{"of before", {.amax = 1}}};
  slots.clear();
  EXPECT_TRUE(slots.records().empty());
}

TEST(Slots, LoseNothingWhenManyThreadsReport) {
  Slots slots;
  runtime::parallel_for(1000, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      slots.report(i % 2 == 0 ? "even" : "odd", {.amax = i % 10 == 0 ? kInf : static_cast<float>(i)});
    }
  });
  const std::vector<Record> records = slots.records();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].calls + records[1].calls, 1000);
  EXPECT_EQ(records[0].non_finite, 100);
  EXPECT_EQ(records[0].amax, 998);
  EXPECT_EQ(records[1].non_finite, 0);
}

TEST(Slots, WriteOneJsonObjectALine) {
  Slots slots;
  slots.report("say \"hi\"", {.format = Format::kE4m3, .amax = 7});
  slots.report("zero", {.format = Format::kFp16, .amax = 0, .non_finite = 2});
  std::ostringstream out;
  write_json_lines(out, slots.records());
  EXPECT_EQ(out.str(), R"({"name":"say \"hi\"","format":"e4m3","calls":1,"amax":7.0,"headroom_bits":6.0,)"
                       R"("non_finite":0,"first_non_finite_call":-1})"
                       "\n"
                       R"({"name":"zero","format":"fp16","calls":1,"amax":0.0,"headroom_bits":null,)"
                       R"("non_finite":2,"first_non_finite_call":0})"
                       "\n");
}

}  // namespace
}  // namespace plimsoll::watch
