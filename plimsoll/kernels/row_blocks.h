// Sums over many rows with the same bits for any number of threads: rows in blocks of kRowBlock, each block's partial
// sums in row order, the blocks in groups of kGroup. With n blocks a term passes at most kRowBlock + kGroup + ceil(n /
// kGroup) additions, each with a relative error of 2^-24.
#pragma once

#include <algorithm>
#include <cstdint>

#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {

inline constexpr int64_t kRowBlock = 64;
inline constexpr int64_t kGroup = 64;

constexpr int64_t row_blocks(int64_t rows) { return (rows + kRowBlock - 1) / kRowBlock; }

// sum[c] = sum over b of partials[b * stride + c]; 0 for no blocks.
inline void sum_blocks(const float* partials, int64_t blocks, int64_t stride, int64_t cols, float* sum) {
  constexpr int64_t kColumns = 256, kWorthAThread = 16384;
  const int64_t pieces = std::max<int64_t>(kWorthAThread / (kColumns * std::max<int64_t>(blocks, 1)), 1);
  runtime::parallel_for(cols, pieces * kColumns, [=](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kColumns) {
      const int64_t width = std::min(kColumns, end - first);
      std::fill_n(sum + first, width, 0.0f);
      for (int64_t group = 0; group < blocks; group += kGroup) {
        float total[kColumns] = {};
        for (int64_t block = group; block < std::min(group + kGroup, blocks); ++block) {
          const float* partial = partials + block * stride + first;
          for (int64_t c = 0; c < width; ++c) total[c] += partial[c];
        }
        for (int64_t c = 0; c < width; ++c) sum[first + c] += total[c];
      }
    }
  });
}

}  // namespace plimsoll::kernels
