// Layout of a group's parameters in one flat array, and the part of the array that each rank holds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace plimsoll::shard {

struct FlatEntry {
  std::string name;
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // in the flat array
};

// Elements of one parameter, flattened.
struct FlatRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

class FlatLayout {
 public:
  // Each of several ranks has a multiple of `multiple` elements, but for the last.
  FlatLayout(const std::vector<std::pair<std::string, std::vector<int64_t>>>& parameters, int64_t world_size,
             int64_t multiple = 1);

  const std::vector<FlatEntry>& entries() const { return entries_; }
  int64_t numel() const { return entries_.empty() ? 0 : entries_.back().end; }

  // Elements of each rank on the wire: ceil(numel / world_size), or the next multiple.
  int64_t part() const { return part_; }
  int64_t padded() const { return part_ * world_size_; }

  // Part of the flat array that `rank` holds; without padding, so the last ranks may hold less, or nothing.
  FlatRange shard(int64_t rank) const {
    return {std::min(rank * part_, numel()), std::min((rank + 1) * part_, numel())};
  }

  // Part of one parameter that `rank` holds; empty: nothing.
  FlatRange held(size_t entry, int64_t rank) const;

 private:
  std::vector<FlatEntry> entries_;
  int64_t world_size_;
  int64_t part_;
};

}  // namespace plimsoll::shard
