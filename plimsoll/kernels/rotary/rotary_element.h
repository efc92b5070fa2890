// A turned pair of channels, for hosts and CUDA devices, with the bits of rotary_loops.inc.
#pragma once

#include "plimsoll/format/host_device.h"

namespace plimsoll::kernels {

struct RotaryPair {
  float first, second;
};

PLIMSOLL_HD inline RotaryPair turned_pair(RotaryPair x, RotaryPair cosine, RotaryPair sine) {
  return {x.first * cosine.first - x.second * sine.first, x.second * cosine.second + x.first * sine.second};
}

// Sines with which turned_pair() is the transposed matrix: x - (-y) has the bits of x + y.
PLIMSOLL_HD inline RotaryPair transposed_sine(RotaryPair sine) { return {-sine.second, -sine.first}; }

}  // namespace plimsoll::kernels
