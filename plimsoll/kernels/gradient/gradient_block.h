// What the ISA files supply: the pass over one block.
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

GradientBlockSum gradient_block_portable(const GradientBlock& block);
GradientBlockSum gradient_block_avx2(const GradientBlock& block);
GradientBlockSum gradient_block_avx512(const GradientBlock& block);

}  // namespace plimsoll::kernels
