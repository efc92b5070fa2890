// Helpers of the vectors' tests: probes of every ISA, and numbers at which formats round.
#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <vector>

#include "plimsoll/kernels/simd/simd_probe.h"
#include "plimsoll/runtime/cpu.h"

namespace plimsoll::kernels::testing {

struct Probed {
  runtime::Isa isa;
  const SimdProbe& probe;
};

inline std::vector<Probed> present() {
  std::vector<Probed> result = {{runtime::Isa::kPortable, kSimdProbePortable}};
  if (runtime::detected_isa() >= runtime::Isa::kAvx2) result.push_back({runtime::Isa::kAvx2, kSimdProbeAvx2});
  if (runtime::detected_isa() >= runtime::Isa::kAvx512) result.push_back({runtime::Isa::kAvx512, kSimdProbeAvx512});
  return result;
}

inline uint32_t word(float x) { return std::bit_cast<uint32_t>(x); }

// Every exponent and sign with the mantissas around each rounding boundary of FP8, FP16 and BF16, and random ones.
inline std::vector<float> floats() {
  std::vector<float> result;
  std::mt19937 random(7);
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu, static_cast<uint32_t>(random() & 0xffff)}) {
      result.push_back(std::bit_cast<float>((high << 16) | low));
    }
  }
  result.push_back(1.0f);  // an odd count, so that the tail is used
  return result;
}

}  // namespace plimsoll::kernels::testing
