// The loop of an SGD step on one instruction set. Private to this folder.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/sgd/sgd.h"

namespace plimsoll::kernels {

struct SgdLoops {
  // One thread's part; returns the bits of its amax.
  int32_t (*part)(const Sgd& part);
};

extern const SgdLoops kSgdLoopsPortable, kSgdLoopsAvx2, kSgdLoopsAvx512;

}  // namespace plimsoll::kernels
