// What the machine can do at most, measured now.
#pragma once

#include <optional>

namespace plimsoll::app {

struct MachineLimits {
  double fp32_gflops = 0;             // of one core: multiply-adds of the ISA in force
  std::optional<double> bf16_gflops;  // of one core: VDPBF16PS, where there is one
  double read_gbytes_per_s = 0;       // of all threads, from memory beyond the caches
};

// Takes about half a second.
MachineLimits measure_limits();

}  // namespace plimsoll::app
