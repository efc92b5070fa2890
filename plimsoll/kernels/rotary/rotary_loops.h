// The tokens of rotary() on one ISA. Private to this folder.
#pragma once

#include "plimsoll/kernels/rotary/rotary.h"

namespace plimsoll::kernels {

struct RotaryLoops {
  void (*tokens)(const Rotary& args, int64_t begin, int64_t end);
};

extern const RotaryLoops kRotaryLoopsPortable, kRotaryLoopsAvx2, kRotaryLoopsAvx512;

}  // namespace plimsoll::kernels
