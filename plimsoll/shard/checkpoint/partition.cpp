#include "plimsoll/shard/checkpoint/partition.h"

#include <algorithm>

namespace plimsoll::shard {

std::vector<int64_t> balanced_owners(std::span<const int64_t> sizes, int64_t world_size) {
  std::vector<int64_t> loads(static_cast<size_t>(world_size), 0);
  return balanced_owners(sizes, loads);
}

std::vector<int64_t> balanced_owners(std::span<const int64_t> sizes, std::vector<int64_t>& loads) {
  std::vector<int64_t> owners;
  for (const int64_t size : sizes) {
    const auto least = std::ranges::min_element(loads);
    owners.push_back(least - loads.begin());
    *least += size;
  }
  return owners;
}

}  // namespace plimsoll::shard
