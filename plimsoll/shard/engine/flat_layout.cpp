#include "plimsoll/shard/engine/flat_layout.h"

#include <functional>
#include <numeric>

namespace plimsoll::shard {

FlatLayout::FlatLayout(const std::vector<std::pair<std::string, std::vector<int64_t>>>& parameters, int64_t world_size,
                       int64_t multiple)
    : world_size_(world_size) {
  for (const auto& [name, shape] : parameters) {
    const int64_t begin = numel();
    const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    entries_.push_back({.name = name, .shape = shape, .begin = begin, .end = begin + count});
  }
  part_ = (numel() + world_size - 1) / world_size;
  if (world_size > 1) part_ = (part_ + multiple - 1) / multiple * multiple;
}

FlatRange FlatLayout::held(size_t entry, int64_t rank) const {
  const FlatEntry& whole = entries_[entry];
  const FlatRange mine = shard(rank);
  const int64_t begin = std::clamp(mine.begin, whole.begin, whole.end), end = std::clamp(mine.end, begin, whole.end);
  return {begin - whole.begin, end - whole.begin};
}

}  // namespace plimsoll::shard
