// Launch of a kernel: how many blocks of how many threads. Each op's x_launch.h chooses it from the op's arguments, so that
// tests without a card launch as a card does.
#pragma once

#include <cstdint>

#include "plimsoll/format/host_device.h"

namespace plimsoll::kernels {

PLIMSOLL_HD constexpr int64_t pieces_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

inline constexpr int kWarp = 32;

struct Launch {
  uint32_t blocks = 0, threads = 0;
};

// Blocks for `units` of work, of which a block takes one after another. resident: blocks that a multiprocessor holds at once; with
// more, the last ones would run while most of it is idle.
constexpr Launch launch_over(int64_t units, uint32_t threads, int multiprocessors, int resident = 8) {
  const int64_t most = int64_t{resident} * multiprocessors;
  return {static_cast<uint32_t>(units < most ? units : most), threads};
}

}  // namespace plimsoll::kernels
