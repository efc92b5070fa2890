// The loop of dropout() on one instruction set. Private to this folder.
#pragma once

#include "plimsoll/kernels/dropout/dropout.h"

namespace plimsoll::kernels {

struct DropoutPart {
  const Dropout& args;
  int64_t begin, count;  // elements of args; begin is a multiple of 16, all have its upper 32 bits
  uint32_t threshold;    // words below it are of elements that become zero
};
struct DropoutLoops {
  void (*part)(const DropoutPart& part);
};

extern const DropoutLoops kDropoutLoopsPortable, kDropoutLoopsAvx2, kDropoutLoopsAvx512;

}  // namespace plimsoll::kernels
