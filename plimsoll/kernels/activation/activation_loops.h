// The elements of an activation on one ISA. Private to this folder.
#pragma once

#include "plimsoll/kernels/activation/activation.h"

namespace plimsoll::kernels {

struct ActivationLoops {
  // Elements begin .. end - 1 of y in row-major order; returns amax(y) as bits.
  int32_t (*forward)(const ActivationForward& args, int64_t begin, int64_t end);
  // Elements begin .. end - 1 of dy; returns amax(dx) as bits. Adds dx to column_sum [cols of x], if given.
  int32_t (*backward)(const ActivationBackward& args, int64_t begin, int64_t end, float* column_sum);
};

extern const ActivationLoops kActivationLoopsPortable, kActivationLoopsAvx2, kActivationLoopsAvx512;

}  // namespace plimsoll::kernels
