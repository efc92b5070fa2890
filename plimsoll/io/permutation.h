// A shuffle that is computed, not stored: element i of a seeded permutation of [0, count), in any order, in no memory.
#pragma once

#include <cstdint>

namespace plimsoll::io {

class Permutation {
 public:
  // `round` (an epoch, for example) chooses one of many permutations under the same seed. count >= 1.
  Permutation(int64_t count, uint64_t seed, uint64_t round);

  // A bijection of [0, count).
  int64_t operator()(int64_t index) const;

 private:
  uint64_t shuffle_once(uint64_t value) const;

  uint64_t count_;
  uint64_t seed_;
  uint64_t round_;
  int half_bits_;
};

}  // namespace plimsoll::io
