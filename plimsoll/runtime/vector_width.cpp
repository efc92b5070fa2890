#include "plimsoll/runtime/vector_width.h"

#include "plimsoll/runtime/cpuid.h"
#include "plimsoll/runtime/processor.h"

namespace plimsoll::runtime {

bool splits_512_bits() {
  constexpr int kZen3And4 = 0x19;
  const bool has_avx512 = __get_cpuid_max(0, nullptr) >= 7 && bit(Cpuid(7, 0).ebx, 16);
  const Processor here = processor();
  return here.vendor == Processor::Vendor::kAmd && here.family == kZen3And4 && has_avx512;
}

}  // namespace plimsoll::runtime
