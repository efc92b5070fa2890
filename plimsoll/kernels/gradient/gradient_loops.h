// The pass over one block of gradients on one instruction set. Private to this folder.
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"
#include "plimsoll/kernels/gradient/gradient_blocks.h"

namespace plimsoll::kernels {

struct GradientBlock {
  void* data;
  format::Format format;
  int64_t count;  // at most kGradientBlock
  float scale;
  bool write;
};

struct GradientLoops {
  GradientBlockSum (*block)(const GradientBlock& block);
};

extern const GradientLoops kGradientLoopsPortable, kGradientLoopsAvx2, kGradientLoopsAvx512;

}  // namespace plimsoll::kernels
