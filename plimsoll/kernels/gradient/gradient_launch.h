// Kernels of gradient.cu and how they are launched. Each takes a table of tensors, as many launches as there are tables:
//   gradient_read    sums of blocks
//   gradient_write   y, rounded to the tensor's format, and sums of blocks
//   gradient_scale   y alone
// with the scale and, of the first block of the table, the place of its sum. gradient_groups then adds the sums of all blocks in groups.
// gradient_histogram counts the sampled elements of a table by their exponent; the caller clears the counts before.
#pragma once

#include <vector>

#include "plimsoll/kernels/cuda/launch.h"
#include "plimsoll/kernels/gradient/gradient_blocks.h"
#include "plimsoll/kernels/gradient/gradient_sample.h"

namespace plimsoll::kernels {

inline constexpr int kGradientPassThreads = 128;
inline constexpr int kGradientRun = 2;                               // of neighbouring chains, which a thread adds up
inline constexpr int kGradientTeam = kGradientLanes / kGradientRun;  // threads of a block of elements
inline constexpr int kGradientTeams = kGradientPassThreads / kGradientTeam;
inline constexpr int kGradientTable = 240;  // tensors: a kernel takes 4096 bytes of arguments

// One tensor of a table, in pieces.
struct GradientEntry {
  void* data;
  uint16_t tail;    // elements of its last piece that are looked at
  uint16_t format;  // format::Format
  uint32_t first;   // place of its first piece among those of the table
};

struct GradientTable {
  GradientEntry entries[kGradientTable];
  int32_t count;
  uint32_t pieces;  // of all tensors
};

// Tables of all tensors that have elements, in order. piece: elements from the beginning of one piece to that of the next, of which the
// first `whole` are looked at.
inline std::vector<GradientTable> gradient_tables(const GradientTensor* tensors, size_t count, int64_t piece,
                                                  int64_t whole) {
  std::vector<GradientTable> tables;
  for (size_t i = 0; i < count; ++i) {
    const GradientTensor& tensor = tensors[i];
    if (tensor.count == 0) continue;
    if (tables.empty() || tables.back().count == kGradientTable) tables.emplace_back();
    GradientTable& table = tables.back();
    const int64_t pieces = pieces_of(tensor.count, piece), left = tensor.count - (pieces - 1) * piece;
    table.entries[table.count++] = {.data = tensor.data,
                                    .tail = static_cast<uint16_t>(left < whole ? left : whole),
                                    .format = static_cast<uint16_t>(tensor.format),
                                    .first = table.pieces};
    table.pieces += static_cast<uint32_t>(pieces);
  }
  return tables;
}
inline std::vector<GradientTable> gradient_tables(const GradientPass& args) {
  return gradient_tables(args.tensors, args.tensor_count, kGradientBlock, kGradientBlock);
}

// A team takes a block. A multiprocessor, which has 65,536 registers, holds 12 blocks of threads with 40 registers each.
constexpr Launch gradient_launch(const GradientTable& table, int multiprocessors) {
  return launch_over(pieces_of(table.pieces, kGradientTeams), kGradientPassThreads, multiprocessors, 12);
}

// A warp takes a group. blocks: of all tensors.
constexpr Launch gradient_groups_launch(int64_t blocks, int multiprocessors) {
  return launch_over(pieces_of(gradient_groups(blocks), kGradientPassThreads / kWarp), kGradientPassThreads,
                     multiprocessors);
}

// A warp takes a piece. Few blocks: each has a histogram of its own to add to the others'.
constexpr Launch gradient_histogram_launch(const GradientTable& table, int multiprocessors) {
  return launch_over(pieces_of(table.pieces, kGradientPassThreads / kWarp), kGradientPassThreads, multiprocessors, 1);
}

}  // namespace plimsoll::kernels
