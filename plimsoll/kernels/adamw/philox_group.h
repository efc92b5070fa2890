// 64 words of runtime::Philox at a time, as plain loops over 16 counters that compilers turn into vectors. Internal
// linkage, because ISA files include it; adamw_test compares it with runtime::Philox.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

// words[i] = Philox{seed, step}.word(first + i); first is a multiple of 64.
PLIMSOLL_INLINE void philox_group(uint64_t seed, uint64_t step, uint64_t first, uint32_t (&words)[64]) {
  constexpr uint32_t kMultiply0 = 0xD2511F53u, kMultiply1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  const uint64_t block = first / 4;
  uint32_t c0[16], c1[16], c2[16], c3[16];
  for (uint32_t lane = 0; lane < 16; ++lane) {
    c0[lane] = static_cast<uint32_t>(block) + lane;  // no carry: block is a multiple of 16
    c1[lane] = static_cast<uint32_t>(block >> 32);
    c2[lane] = static_cast<uint32_t>(step);
    c3[lane] = static_cast<uint32_t>(step >> 32);
  }
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int lane = 0; lane < 16; ++lane) {
      const uint64_t p0 = uint64_t{kMultiply0} * c0[lane], p1 = uint64_t{kMultiply1} * c2[lane];
      c0[lane] = static_cast<uint32_t>(p1 >> 32) ^ c1[lane] ^ key0;
      c1[lane] = static_cast<uint32_t>(p1);
      c2[lane] = static_cast<uint32_t>(p0 >> 32) ^ c3[lane] ^ key1;
      c3[lane] = static_cast<uint32_t>(p0);
    }
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  for (int lane = 0; lane < 16; ++lane) {
    words[4 * lane] = c0[lane];
    words[4 * lane + 1] = c1[lane];
    words[4 * lane + 2] = c2[lane];
    words[4 * lane + 3] = c3[lane];
  }
}

}  // namespace
}  // namespace plimsoll::kernels
