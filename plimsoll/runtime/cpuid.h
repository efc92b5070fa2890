// One leaf of CPUID. Private to this folder.
#pragma once

#include <cpuid.h>

namespace plimsoll::runtime {

struct Cpuid {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  Cpuid(unsigned leaf, unsigned subleaf) { __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx); }
};

constexpr bool bit(unsigned word, int index) { return (word >> index) & 1u; }

}  // namespace plimsoll::runtime
