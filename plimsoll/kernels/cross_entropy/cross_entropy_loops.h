// The rows of a cross entropy on one ISA. Private to this folder.
#pragma once

#include "plimsoll/kernels/cross_entropy/cross_entropy.h"

namespace plimsoll::kernels {

struct CrossEntropyLoops {
  // Rows begin .. end - 1. buffer: the calling thread's, floats: the vocabulary rounded up to 16, then one for each chunk.
  void (*rows)(const CrossEntropy& args, int64_t begin, int64_t end, float* buffer);
};

extern const CrossEntropyLoops kCrossEntropyLoopsPortable, kCrossEntropyLoopsAvx2, kCrossEntropyLoopsAvx512;

}  // namespace plimsoll::kernels
