// The loop of rescale() on one instruction set. Private to this folder.
#pragma once

#include "plimsoll/kernels/rescale/rescale.h"

namespace plimsoll::kernels {

struct RescaleLoops {
  // One thread's part; returns the bits of its amax.
  int32_t (*part)(const Rescale& part);
};

extern const RescaleLoops kRescaleLoopsPortable, kRescaleLoopsAvx2, kRescaleLoopsAvx512;

}  // namespace plimsoll::kernels
