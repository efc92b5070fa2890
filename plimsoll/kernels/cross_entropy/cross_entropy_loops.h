// The rows of a cross entropy on one ISA. Private to this folder.
#pragma once

#include "plimsoll/kernels/cross_entropy/cross_entropy.h"

namespace plimsoll::kernels {

// Logits whose exponentials are relative to one of them and are summed in FP32.
inline constexpr int64_t kCrossEntropyChunk = 1024;

constexpr int64_t cross_entropy_chunks(int64_t vocabulary) {
  return (vocabulary + kCrossEntropyChunk - 1) / kCrossEntropyChunk;
}

struct CrossEntropyLoops {
  // Rows begin .. end - 1. buffer: the calling thread's, [vocabulary + chunks] floats rounded up to 16 each.
  void (*rows)(const CrossEntropy& args, int64_t begin, int64_t end, float* buffer);
};

extern const CrossEntropyLoops kCrossEntropyLoopsPortable, kCrossEntropyLoopsAvx2, kCrossEntropyLoopsAvx512;

}  // namespace plimsoll::kernels
