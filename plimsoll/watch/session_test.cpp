#include "plimsoll/watch/session.h"

#include <gtest/gtest.h>

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
  EXPECT_EQ(current(), &outer.slots());
  EXPECT_EQ(outer.slots().records().size(), 1u);
}

TEST(Session, IsThreadLocalAndCanBeCarried) {
  Session session;
  Slots* carried = current();
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

}  // namespace
}  // namespace plimsoll::watch
