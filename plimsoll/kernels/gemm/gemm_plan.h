// Partition of a product: blocks of k, panels of rows and columns, rectangles for threads. Pure functions of sizes.
// Private to this folder.
#pragma once

#include <algorithm>
#include <cstdint>

#include "plimsoll/kernels/gemm/gemm_isa.h"
#include "plimsoll/runtime/divide_up.h"

namespace plimsoll::kernels {

// At most so many row panels read B once, without blocks of k, while A stays in L2.
inline constexpr int64_t kFewPanels = 2;
// Packing an element of A costs about as much as this many multiply-adds with it.
inline constexpr int64_t kPackingColumns = 32;
// B packed at a time, where it is not packed beforehand: 32 MiB, but at least 1024 columns, so that A is not packed
// again too often.
inline constexpr int64_t kPackedDwords = int64_t{8} << 20;
inline constexpr int64_t kFewestPackedPanels = 32;

using runtime::divide_up;

struct Range {
  int64_t begin = 0, end = 0;
  constexpr int64_t size() const { return end - begin; }
};
constexpr Range part_of(int64_t count, int64_t index, int64_t parts) {
  return {count * index / parts, count * (index + 1) / parts};
}

// Blocks of k, at most `longest`, a multiple of 64. Partial sums continue from block to block, so the bits do not depend on them.
struct KBlocks {
  int64_t k, length, count;  // count >= 1, also for k = 0

  constexpr KBlocks(int64_t k_total, int64_t longest)
      : k(k_total),
        length(std::max<int64_t>(divide_up(divide_up(k, std::max<int64_t>(divide_up(k, longest), 1)), 64) * 64, 64)),
        count(std::max<int64_t>(divide_up(k, length), 1)) {}
  constexpr Range block(int64_t index) const { return {index * length, std::min((index + 1) * length, k)}; }
};

// Row panels whose packed A takes at most so many bytes; few, so that threads can take over blocks from one another.
constexpr int64_t panels_in(int64_t bytes, int64_t panel_bytes) {
  constexpr int64_t kMost = 16;
  return std::clamp<int64_t>(bytes / std::max<int64_t>(panel_bytes, 1), 1, kMost);
}

// Places of packed B panels: one after the other, each with all of k (and up to three more, so that whole stored quads
// can be decoded), so that few rows read B as one stream. k_begin is a multiple of 64.
struct PackedLayout {
  int64_t k, panels;
  Dword dword;

  constexpr int64_t panel_dwords() const { return panel_dwords_of(divide_up(k, 4) * 4, dword); }
  constexpr int64_t offset(int64_t k_begin, int64_t panel) const {
    return panel * panel_dwords() + panel_dwords_of(k_begin, dword);
  }
  constexpr int64_t dwords() const { return panels * panel_dwords(); }
};

constexpr int64_t panels_at_a_time(int64_t panel_dwords, int64_t panels) {
  return std::min(panels, std::max(kFewestPackedPanels, kPackedDwords / std::max<int64_t>(panel_dwords, 1)));
}

// Places in the part of a B panel that is one block of k, as it is made for the microkernel.
constexpr BPlaces places_of(const GemmIsa& isa, int64_t k) {
  if (!isa.halves_b) return {};
  return {.pitch = kBPitch / 2, .half = divide_up(k, 4) * 4 * (kBPitch / 2)};
}

// Part of B that is packed at a time.
struct PackedPart {
  int64_t panels, k_blocks;
};

// All of k, or, where that is beyond the limit even for the fewest panels, some blocks of it: then the tiles of all rows
// stay from part to part, tile_dwords of them for a panel of B. Products with too many rows for that take all of k.
constexpr PackedPart packed_at_a_time(const KBlocks& k, Dword dword, int64_t tile_dwords, int64_t panels) {
  const int64_t panel_dwords = PackedLayout{k.k, 1, dword}.panel_dwords();
  const int64_t block_dwords = PackedLayout{k.length, 1, dword}.panel_dwords();
  const int64_t of_all_k = panels_at_a_time(panel_dwords, panels);
  const int64_t kept = std::min(panels, kPackedDwords / std::max(tile_dwords, block_dwords));
  if (of_all_k * panel_dwords <= kPackedDwords || kept < of_all_k) return {of_all_k, k.count};
  return {kept, kPackedDwords / (kept * block_dwords)};
}

// The output cut into row_parts x column_parts rectangles of panels, one a thread.
struct Grid {
  int64_t row_parts = 1, column_parts = 1;
};

// The grid whose largest rectangle costs least, packing of its rows of A included.
inline Grid choose_grid(int64_t row_panels, int64_t panel_rows, int64_t column_panels, int64_t threads) {
  Grid best;
  int64_t least = INT64_MAX;
  for (int64_t row_parts = 1; row_parts <= std::min(threads, row_panels); ++row_parts) {
    const int64_t column_parts = std::clamp<int64_t>(threads / row_parts, 1, std::max<int64_t>(column_panels, 1));
    const int64_t rows = divide_up(row_panels, row_parts) * panel_rows;
    const int64_t columns = divide_up(column_panels, column_parts) * kTileColumns;
    const int64_t cost = rows * (columns + kPackingColumns);
    if (cost <= least) {
      least = cost;
      best = {row_parts, column_parts};
    }
  }
  return best;
}

// Whether threads take whole products of a batch: not where the last round would leave many without one, unless the
// products are too small to be divided.
constexpr bool whole_products(int64_t batch, int64_t work_of_each, int64_t threads) {
  if (work_of_each < threads * kThreadGrain) return true;
  return divide_up(batch, threads) * threads * 8 <= batch * 9;
}

}  // namespace plimsoll::kernels
