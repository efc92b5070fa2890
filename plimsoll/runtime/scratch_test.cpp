#include "plimsoll/runtime/scratch.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>

namespace plimsoll::runtime {
namespace {

TEST(Scratch, IsKeptBetweenCallsAndGrows) {
  release_scratch();
  void* first = scratch(ScratchSlot::kRows, 1000);
  std::memset(first, 7, 1000);
  EXPECT_EQ(scratch(ScratchSlot::kRows, 500), first);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
  const size_t held = scratch_bytes();
  scratch(ScratchSlot::kRows, held + 1);
  EXPECT_GT(scratch_bytes(), held);
  release_scratch();
  EXPECT_EQ(scratch_bytes(), 0u);
}

TEST(Scratch, SlotsAndThreadsDoNotShare) {
  void* mine = scratch(ScratchSlot::kRows, 64);
  EXPECT_NE(scratch(ScratchSlot::kReduce, 64), mine);
  void* other = mine;
  std::thread([&] { other = scratch(ScratchSlot::kRows, 64); }).join();
  EXPECT_NE(other, mine);
}

}  // namespace
}  // namespace plimsoll::runtime
