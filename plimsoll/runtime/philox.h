// Philox4x32-10: a counter-based random generator. Element i of step s under seed k is always the same number, whatever
// thread, ISA or device asks for it. Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011.
#pragma once

#include <array>
#include <cstdint>

namespace plimsoll::runtime {

using PhiloxBlock = std::array<uint32_t, 4>;

constexpr PhiloxBlock philox4x32(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  constexpr uint32_t kMultiply0 = 0xD2511F53u, kMultiply1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{kMultiply0} * counter[0], p1 = uint64_t{kMultiply1} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return counter;
}

// A stream of random words indexed by element.
struct Philox {
  uint64_t seed = 0;
  uint64_t step = 0;

  // Four words for elements 4 * block .. 4 * block + 3.
  constexpr PhiloxBlock words(uint64_t block) const {
    return philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(step),
                       static_cast<uint32_t>(step >> 32)},
                      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  }
  constexpr uint32_t word(uint64_t element) const { return words(element / 4)[element % 4]; }
};

}  // namespace plimsoll::runtime
