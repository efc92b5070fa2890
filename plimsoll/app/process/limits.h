// Peak rates of the machine, measured now.
#pragma once

#include <optional>

namespace plimsoll::app {

struct MachineLimits {
  double fp32_gflops = 0;             // of one core: multiply-adds of the ISA in force
  std::optional<double> bf16_gflops;  // of one core: VDPBF16PS, where there is one
  std::optional<double> tile_gflops;  // of one core: TDPBF16PS, where there is one
  double read_gbytes_per_s = 0;       // of all threads, from memory beyond the caches
};

// Takes about half a second.
MachineLimits measure_limits();

// Sums over the threads, while all of them are at it.
struct Rate {
  double one_thread = 0, all_threads = 0;
};

// Plain passes, GB/s; bytes read and bytes written both count.
struct MemoryRates {
  Rate read, copy, in_place;
};

struct AllLimits {
  Rate fp32_gflops;
  std::optional<Rate> bf16_gflops, tile_gflops;
  MemoryRates l2, l3;  // of buffers that fit half of it, or a share of it
  MemoryRates memory;  // of buffers together twice as large as the last cache
  // Writing fresh memory for the first time, GB/s: on the system's small pages, and where huge ones were asked for.
  Rate first_touch, first_touch_huge;
  double fork_join_us = 0;  // median of starting all threads on nothing and waiting for them, one right after another
};

// Takes some seconds and up to 512 MiB.
AllLimits measure_all_limits();

}  // namespace plimsoll::app
