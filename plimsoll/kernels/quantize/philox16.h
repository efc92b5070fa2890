// 16 words of runtime::Philox from any element on. Internal linkage, as in simd/vector.h.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/simd/philox.h"
#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

// Hands out 16 consecutive words from any element on; neighbouring requests share the blocks that were made.
class PhiloxCache {
 public:
  PhiloxCache(const PhiloxKeys& keys, uint64_t step) : keys_(keys), step_(step) {}

  I32x16 at(uint64_t element) {
    if (element < begin_ || element + 16 > begin_ + 64) {
      begin_ = element / 4 * 4;
      I32x16 words[4];
      philox_64_words(keys_, step_, element / 4, words);
      __builtin_memcpy(words_, words, sizeof(words_));
    }
    float lanes[16];
    __builtin_memcpy(lanes, words_ + (element - begin_), sizeof(lanes));
    return bits(load(lanes));
  }

 private:
  const PhiloxKeys& keys_;
  uint64_t step_;
  uint64_t begin_ = ~uint64_t{0};  // no element is at or past it, so the first request fills words_
  uint32_t words_[64];
};

}  // namespace
}  // namespace plimsoll::kernels
