#include "plimsoll/watch/session.h"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <thread>

namespace plimsoll::watch {
namespace {

TEST(Session, NobodyWatchesWithoutOne) {
  EXPECT_EQ(current(), nullptr);
  report("op", {.amax = 1});
}

TEST(Session, InnerOneHoldsAndOuterComesBack) {
  Session outer;
  report("first", {.amax = 1});
  try {
    Session inner;
    report("second", {.amax = 1});
    EXPECT_EQ(inner.slots().records().size(), 1u);
    throw std::runtime_error("leaves the scope");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(current(), &outer);
  EXPECT_EQ(outer.slots().records().size(), 1u);
}

TEST(Session, IsThreadLocalAndCanBeCarried) {
  Session session;
  Session* carried = current();
  std::thread([carried] {
    EXPECT_EQ(current(), nullptr);
    {
      const Adopt scope(carried);
      report("backward", {.amax = 2});
    }
    EXPECT_EQ(current(), nullptr);
  }).join();
  EXPECT_EQ(session.slots().records().size(), 1u);
}

TEST(Session, OffMeansNobodyWatches) {
  Session outer;
  {
    const Session inner({.mode = Mode::kOff});
    EXPECT_EQ(current(), nullptr);
    report("op", {.amax = 1});
  }
  EXPECT_EQ(current(), &outer);
  EXPECT_TRUE(outer.slots().records().empty());
}

TEST(Session, WarnsOfWhatIsNotFiniteThenUnderTwoBits) {
  Session session;
  report("calm", {.format = format::Format::kFp16, .amax = 10000});
  report("close", {.format = format::Format::kFp16, .amax = 20000});
  report("beyond", {.format = format::Format::kFp16, .amax = std::numeric_limits<float>::infinity()});
  const std::vector<Record> warnings = session.warnings();
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_EQ(warnings[0].name, "beyond");
  EXPECT_EQ(warnings[1].name, "close");
}

TEST(Session, TrapsAreArmedInTrapModeOnly) {
  for (const Mode mode : {Mode::kGuard, Mode::kCount, Mode::kShadow}) {
    const Session session({.mode = mode});
    EXPECT_EQ(runtime::overflow_log(), nullptr);
  }
  const Session session({.mode = Mode::kTrap});
  EXPECT_NE(runtime::overflow_log(), nullptr);
}

TEST(Mode, NamesAreReadBack) {
  for (const std::string_view text : kModeNames) EXPECT_EQ(name(*parse_mode(text)), text);
  EXPECT_FALSE(parse_mode("gard").has_value());
}

}  // namespace
}  // namespace plimsoll::watch
