// Launch of kernels in which a team of threads holds a row in its registers, and a block has one or more teams.
#pragma once

#include "plimsoll/kernels/cuda/launch.h"

namespace plimsoll::kernels {

inline constexpr int kSumBlock = 1024, kSumLanes = 16;  // simd/row.h: the terms of a block of a sum, and its lanes
inline constexpr int kTeamThreads = 256;                // the most of a team, and of a block

// Threads that hold a piece of kSumBlock elements: each has 8 bytes of every 64 elements.
PLIMSOLL_HD constexpr int piece_threads(int element_bytes) { return element_bytes == 4 ? 32 : 16; }

// Pieces that a team holds.
PLIMSOLL_HD constexpr int team_pieces(int64_t cols, int element_bytes) {
  const int most = kTeamThreads / piece_threads(element_bytes);
  if (cols >= int64_t{most} * kSumBlock) return most;
  const int pieces = cols <= kSumBlock ? 1 : static_cast<int>(pieces_of(cols, kSumBlock));
  return pieces > most / 2 ? (pieces + 1) / 2 * 2 : pieces;
}

// Whether a team holds rows of this width in registers: they fit, and are worth the code of whole pieces.
PLIMSOLL_HD constexpr bool is_held(int64_t cols, int element_bytes) {
  return cols > kSumBlock / 4 && cols <= int64_t{team_pieces(cols, element_bytes)} * kSumBlock;
}

// Teams in whole warps, four or more, and blocks for `resident` threads of each multiprocessor.
constexpr Launch team_launch(int64_t rows, int64_t cols, int element_bytes, int resident, int multiprocessors) {
  const int team = team_pieces(cols, element_bytes) * piece_threads(element_bytes);
  int teams = team < 4 * kWarp ? 4 * kWarp / team : 1;
  if (teams * team % kWarp != 0) ++teams;
  const int threads = teams * team;
  const int64_t blocks = pieces_of(rows, teams), most = int64_t{resident / threads} * multiprocessors;
  return {static_cast<uint32_t>(blocks < most ? blocks : most), static_cast<uint32_t>(threads)};
}

}  // namespace plimsoll::kernels
