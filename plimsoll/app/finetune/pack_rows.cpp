#include "plimsoll/app/finetune/pack_rows.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace plimsoll::app {

Rows pack_rows(std::span<const int64_t> lengths, int64_t capacity) {
  std::vector<size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return lengths[a] > lengths[b]; });
  Rows rows;
  std::set<std::pair<int64_t, size_t>> room;  // that a row has, and the row
  for (const size_t text : order) {
    auto fullest = room.lower_bound({lengths[text], 0});
    if (fullest == room.end()) {
      fullest = room.emplace(capacity, rows.size()).first;
      rows.emplace_back();
    }
    const auto [left, row] = *fullest;
    room.erase(fullest);
    rows[row].push_back(text);
    room.emplace(left - lengths[text], row);
  }
  return rows;
}

}  // namespace plimsoll::app
