// The pairs of tokens that become one, and their order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace plimsoll::tokenize {

struct Merge {
  uint32_t rank;  // the lowest is done first
  uint32_t id;    // of the token that the pair becomes
};

// Open addressing, at most half full: a lookup reads one line of the cache nearly always.
class Merges {
 public:
  explicit Merges(size_t count);
  // A pair that is there already gets the new rank. At most `count` pairs.
  void add(uint32_t left, uint32_t right, Merge merge);
  // Null if the pair stays a pair.
  const Merge* find(uint32_t left, uint32_t right) const {
    const Slot& slot = slots_[place_of(key_of(left, right))];
    return slot.key == kFree ? nullptr : &slot.merge;
  }

 private:
  static constexpr uint64_t kFree = UINT64_MAX;
  struct Slot {
    uint64_t key = kFree;
    Merge merge{};
  };
  static uint64_t key_of(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }
  // The slot where this key is, or the free slot where it belongs.
  size_t place_of(uint64_t key) const {
    size_t place = (key * 0x9E3779B97F4A7C15U) >> shift_;  // Knuth's multiplicative hash, 2^64 / golden ratio
    while (slots_[place].key != key && slots_[place].key != kFree) place = (place + 1) & (slots_.size() - 1);
    return place;
  }

  std::vector<Slot> slots_;
  uint32_t shift_;
};

}  // namespace plimsoll::tokenize
