// Blocks of a pass over gradients, the order in which their sums are added, and what hosts and CUDA devices share of it. Private to
// this folder.
#pragma once

#include "plimsoll/format/host_device.h"
#include "plimsoll/kernels/gradient/gradient.h"

namespace plimsoll::kernels {

inline constexpr int64_t kGradientBlock = 4096;  // elements; fixed, so that sums do not depend on threads
inline constexpr int kGradientLanes = 16;        // chains of sums of a block: element i belongs to chain i % 16
// Blocks whose sums are added in order before they join those of the groups before. The chain of a model of 7e9 parameters is then
// 256 + 6,700 additions long, and not 1,700,000, for which a device has but one thread.
inline constexpr int64_t kGradientGroup = 256;

struct GradientBlockSum {
  double sum_of_squares;
  int64_t non_finite;
};

// Sum of a group of blocks.
struct GradientGroupSum {
  double sum_of_squares = 0;
  int32_t non_finite = 0;  // at most kGradientGroup * kGradientBlock
  int32_t first = -1;      // the first block of the group that holds what is not finite; -1: none
};

PLIMSOLL_HD constexpr int64_t gradient_blocks(int64_t count) { return (count + kGradientBlock - 1) / kGradientBlock; }
PLIMSOLL_HD constexpr int64_t gradient_groups(int64_t blocks) { return (blocks + kGradientGroup - 1) / kGradientGroup; }

// Blocks of all tensors.
inline int64_t gradient_blocks(const GradientPass& args) {
  int64_t blocks = 0;
  for (size_t i = 0; i < args.tensor_count; ++i) blocks += gradient_blocks(args.tensors[i].count);
  return blocks;
}

// Summary of groups[gradient_groups(gradient_blocks(args))].
GradientSummary gradient_summary(const GradientPass& args, const GradientGroupSum* groups);

}  // namespace plimsoll::kernels
