// Launch of kernels in which each run of a row's neighbouring elements has a thread of its own: a block takes several short rows at
// once, and a long row several blocks.
#pragma once

#include "plimsoll/kernels/cuda/launch.h"

namespace plimsoll::kernels {

struct RowThreads {
  int lanes, rows;  // threads of a row, and rows of a block
};

PLIMSOLL_HD constexpr RowThreads row_threads(int64_t runs, int threads) {
  const int lanes = runs < 1 ? 1 : runs < threads ? static_cast<int>(runs) : threads;
  return {lanes, threads / lanes};
}

constexpr Launch row_launch(int64_t rows, int64_t runs, int threads, int multiprocessors, int resident) {
  const RowThreads of = row_threads(runs, threads);
  return launch_over(pieces_of(rows, of.rows) * pieces_of(runs, of.lanes), static_cast<uint32_t>(threads),
                     multiprocessors, resident);
}

}  // namespace plimsoll::kernels
