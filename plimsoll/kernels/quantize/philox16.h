// runtime/philox.h for vector code: the same words, 64 elements at a time. Internal linkage, as in simd/vector.h.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

// Words 4 * first_block .. 4 * first_block + 63. Written as loops over lanes, which the compiler turns into vectors.
inline void philox_64_words(uint64_t seed, uint64_t step, uint64_t first_block, uint32_t* words) {
  constexpr uint32_t kMultiply0 = 0xD2511F53u, kMultiply1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  uint32_t counter0[16], counter1[16], counter2[16], counter3[16];
  for (int lane = 0; lane < 16; ++lane) {
    const uint64_t block = first_block + static_cast<uint64_t>(lane);
    counter0[lane] = static_cast<uint32_t>(block);
    counter1[lane] = static_cast<uint32_t>(block >> 32);
    counter2[lane] = static_cast<uint32_t>(step);
    counter3[lane] = static_cast<uint32_t>(step >> 32);
  }
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int lane = 0; lane < 16; ++lane) {
      const uint64_t p0 = uint64_t{kMultiply0} * counter0[lane], p1 = uint64_t{kMultiply1} * counter2[lane];
      counter0[lane] = static_cast<uint32_t>(p1 >> 32) ^ counter1[lane] ^ key0;
      counter2[lane] = static_cast<uint32_t>(p0 >> 32) ^ counter3[lane] ^ key1;
      counter1[lane] = static_cast<uint32_t>(p1);
      counter3[lane] = static_cast<uint32_t>(p0);
    }
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  for (int lane = 0; lane < 16; ++lane) {
    words[4 * lane] = counter0[lane];
    words[4 * lane + 1] = counter1[lane];
    words[4 * lane + 2] = counter2[lane];
    words[4 * lane + 3] = counter3[lane];
  }
}

// Hands out 16 consecutive words from any element on; neighbouring requests share the blocks that were made.
class PhiloxCache {
 public:
  PhiloxCache(uint64_t seed, uint64_t step) : seed_(seed), step_(step) {}

  I32x16 at(uint64_t element) {
    if (element < begin_ || element + 16 > begin_ + 64) {
      begin_ = element / 4 * 4;
      philox_64_words(seed_, step_, element / 4, words_);
    }
    float lanes[16];
    __builtin_memcpy(lanes, words_ + (element - begin_), sizeof(lanes));
    return bits(load(lanes));
  }

 private:
  uint64_t seed_, step_;
  uint64_t begin_ = ~uint64_t{0};  // no element is at or past it, so the first request fills words_
  uint32_t words_[64];
};

}  // namespace
}  // namespace plimsoll::kernels
