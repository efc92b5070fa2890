// The rows of a softmax on one ISA. Private to this folder.
#pragma once

#include "plimsoll/kernels/softmax/softmax.h"

namespace plimsoll::kernels {

struct SoftmaxLoops {
  // Rows begin .. end - 1 of batch * heads * queries. buffer: [keys], the calling thread's.
  void (*forward)(const SoftmaxForward& args, int64_t begin, int64_t end, float* buffer);
  // buffer: [2, keys].
  void (*backward)(const SoftmaxBackward& args, int64_t begin, int64_t end, float* buffer);
};

extern const SoftmaxLoops kSoftmaxLoopsPortable, kSoftmaxLoopsAvx2, kSoftmaxLoopsAvx512;

}  // namespace plimsoll::kernels
