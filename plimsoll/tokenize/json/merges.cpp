#include "plimsoll/tokenize/json/merges.h"

#include <algorithm>
#include <bit>

namespace plimsoll::tokenize {

Merges::Merges(size_t count)
    : slots_(std::bit_ceil(std::max<size_t>(2 * count, 2))),
      shift_(static_cast<uint32_t>(64 - std::countr_zero(slots_.size()))) {}

void Merges::add(uint32_t left, uint32_t right, Merge merge) {
  const uint64_t key = key_of(left, right);
  slots_[place_of(key)] = {key, merge};
}

}  // namespace plimsoll::tokenize
