// The rows of a norm on one ISA. Private to this folder.
#pragma once

#include "plimsoll/kernels/norm/norm.h"

namespace plimsoll::kernels {

struct NormLoops {
  // Rows begin .. end - 1; returns amax(y) as bits. buffer: the calling thread's.
  int32_t (*forward)(const NormForward& args, int64_t begin, int64_t end, float* buffer);
  // The same, and the rows' sums into dweight and dbias [cols], each optional.
  void (*backward)(const NormBackward& args, int64_t begin, int64_t end, float* buffer, float* dweight, float* dbias);
};

extern const NormLoops kNormLoopsPortable, kNormLoopsAvx2, kNormLoopsAvx512;

}  // namespace plimsoll::kernels
