// The rows of a log softmax on one ISA. Private to this folder.
#pragma once

#include "plimsoll/kernels/log_softmax/log_softmax.h"

namespace plimsoll::kernels {

struct LogSoftmaxLoops {
  // Rows begin .. end - 1.
  void (*forward)(const LogSoftmaxForward& args, int64_t begin, int64_t end);
  void (*backward)(const LogSoftmaxBackward& args, int64_t begin, int64_t end);
};

extern const LogSoftmaxLoops kLogSoftmaxLoopsPortable, kLogSoftmaxLoopsAvx2, kLogSoftmaxLoopsAvx512;

}  // namespace plimsoll::kernels
