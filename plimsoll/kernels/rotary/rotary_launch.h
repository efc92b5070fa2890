// Kernels of rotary.cu and how they are launched. rotary_X has X, the format of x and y, in its name, and takes the arguments of
// rotary.h, whose pointers are the device's.
#pragma once

#include "plimsoll/kernels/cuda/row_launch.h"
#include "plimsoll/kernels/rotary/rotary.h"

namespace plimsoll::kernels {

inline constexpr int kRotaryThreads = 64, kRotaryBlocks = 10;
inline constexpr int kRotaryHeads = 4;  // heads that a thread turns by the angles that it has read

// Pairs of a thread: 16 bytes of their first channels, and 16 of their second ones.
PLIMSOLL_HD constexpr int rotary_run(format::Format format) { return format == format::Format::kFp32 ? 4 : 8; }

// Threads of a head: first those of pairs, then those of other channels, 2 rotary_run each. A head that is copied whole has fewer.
PLIMSOLL_HD constexpr int64_t rotary_pair_runs(const Rotary& args) {
  return pieces_of(args.rotated / 2, rotary_run(args.format));
}
PLIMSOLL_HD constexpr int64_t rotary_runs(const Rotary& args) {
  return rotary_pair_runs(args) + pieces_of(args.channels - args.rotated, 2 * rotary_run(args.format));
}

// Heads of a token that a block takes at once.
PLIMSOLL_HD constexpr int64_t rotary_block_heads(const Rotary& args) {
  return int64_t{kRotaryHeads} * row_threads(rotary_runs(args), kRotaryThreads).rows;
}

constexpr Launch rotary_launch(const Rotary& args, int multiprocessors) {
  return launch_over(args.tokens * pieces_of(args.heads, rotary_block_heads(args)), kRotaryThreads, multiprocessors,
                     kRotaryBlocks);
}

}  // namespace plimsoll::kernels
