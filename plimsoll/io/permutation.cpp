#include "plimsoll/io/permutation.h"

#include <algorithm>
#include <bit>

#include "plimsoll/runtime/philox.h"

namespace plimsoll::io {

Permutation::Permutation(int64_t count, uint64_t seed, uint64_t round)
    : count_(static_cast<uint64_t>(count)),
      seed_(seed),
      round_(round),
      half_bits_(std::max(1, static_cast<int>(std::bit_width(count_ - 1) + 1) / 2)) {}

// A Feistel network: a bijection of [0, 4^half_bits), whatever its round function. Four rounds suffice for a
// pseudo-random permutation (Luby and Rackoff, 1988); Philox is the round function.
uint64_t Permutation::shuffle_once(uint64_t value) const {
  constexpr uint64_t kRounds = 4;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  const runtime::Philox philox{.seed = seed_, .step = round_};
  uint64_t left = value >> half_bits_, right = value & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t mixed = left ^ (philox.words(right * kRounds + round)[0] & mask);
    left = right;
    right = mixed;
  }
  return (left << half_bits_) | right;
}

// Walks the cycle until it is back inside [0, count): fewer than 4 steps on average, because 4^half_bits < 4 * count
// (or it is 4).
int64_t Permutation::operator()(int64_t index) const {
  auto value = static_cast<uint64_t>(index);
  do {
    value = shuffle_once(value);
  } while (value >= count_);
  return static_cast<int64_t>(value);
}

}  // namespace plimsoll::io
