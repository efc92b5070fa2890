// Random words for stochastic rounding: one for each element of a tensor and each step, the same whatever thread or ISA
// asks for it. A keyed hash of the element's place in five operations on 32 bits and two multiplications, where Philox,
// which is made for statistics that are looked at more closely, takes a hundred. rounding_words_test.cpp tests what
// rounding needs: uniform halves, and no correlation between elements, steps, seeds and halves.
// Source of the hash: Wellons, "Prospecting for hash functions", 2018 (lowbias32 with improved constants), with keys
// before the first and the second multiplication; the keys are made by Steele, Lea, Flood, "Fast splittable pseudorandom
// number generators", OOPSLA 2014 (the finalizer of SplitMix64).
#pragma once

#include <cstdint>

namespace plimsoll::runtime {

struct RoundingKeys {
  uint32_t first, second;
};

struct RoundingWords {
  static constexpr uint32_t kMultiply0 = 0x21f0aaadu, kMultiply1 = 0xd35a2d97u;

  uint64_t seed = 0;
  uint64_t step = 0;

  // Keys of the elements whose upper 32 bits are these.
  constexpr RoundingKeys keys(uint64_t upper) const {
    const uint64_t key = mix(seed + mix(step + mix(upper)));
    return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
  }
  // The word of the element with these lower 32 bits.
  static constexpr uint32_t word(RoundingKeys keys, uint32_t lower) {
    uint32_t x = lower ^ keys.first;
    x = (x ^ (x >> 16)) * kMultiply0;
    x = (x ^ (x >> 15) ^ keys.second) * kMultiply1;
    return x ^ (x >> 15);
  }
  constexpr uint32_t word(uint64_t element) const { return word(keys(element >> 32), static_cast<uint32_t>(element)); }

 private:
  static constexpr uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
};

}  // namespace plimsoll::runtime
