// Memory that a test may take.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include "plimsoll/serve/json/machine.h"

namespace plimsoll::serve::testing {

// Sanitizers map terabytes.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kLimitsMemory = false;
#else
inline constexpr bool kLimitsMemory = true;
#endif

// Stacks of a state while JsonMachine::next() makes it: four times as many as it keeps, and what one of them becomes.
inline constexpr size_t kStateBytes =
    (5 * kMostStacks + 2 * kMostWays) * (sizeof(JsonStack) + kDeepestJson * sizeof(JsonFrame));

// Whether the body succeeds in a process that may take no more than so many bytes besides what this one has.
inline void expect_within(size_t bytes, const std::function<bool()>& body) {
  const auto run = [&] {
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t most = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + bytes;
    const rlimit limit = {.rlim_cur = most, .rlim_max = most};
    if (kLimitsMemory && setrlimit(RLIMIT_AS, &limit) != 0) _exit(2);
    _exit(body() ? 0 : 1);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

}  // namespace plimsoll::serve::testing
