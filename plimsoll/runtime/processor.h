// Identity of the processor, for what depends on its design beyond its instructions.
#pragma once

#include <cstdint>

namespace plimsoll::runtime {

struct Processor {
  enum class Vendor : uint8_t { kOther, kIntel, kAmd };

  Vendor vendor = Vendor::kOther;
  int family = 0, model = 0;  // as Linux shows them in /proc/cpuinfo

  friend constexpr bool operator==(const Processor&, const Processor&) = default;
};

// The one that this process runs on. Source: Intel SDM vol. 2A, CPUID leaf 1; AMD publication 25481.
Processor processor();

}  // namespace plimsoll::runtime
