// The pass over one block of gradients on one instruction set. Private to this folder.
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"

namespace plimsoll::kernels {

inline constexpr int64_t kGradientBlock = 4096;  // elements; fixed, so that sums do not depend on threads

struct GradientBlock {
  void* data;
  format::Format format;
  int64_t count;  // at most kGradientBlock
  float scale;
  bool write;
};

struct GradientBlockSum {
  double sum_of_squares;
  int64_t non_finite;
};

struct GradientLoops {
  GradientBlockSum (*block)(const GradientBlock& block);
};

extern const GradientLoops kGradientLoopsPortable, kGradientLoopsAvx2, kGradientLoopsAvx512;

}  // namespace plimsoll::kernels
