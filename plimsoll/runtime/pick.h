// The one way to choose among bodies of a kernel that are compiled for several instruction sets.
#pragma once

#include "plimsoll/runtime/cpu.h"

namespace plimsoll::runtime {

// The body for the widest instructions at or below `level`: a function, or a table of functions. All outlive the call.
template <class Body>
const Body& pick(Isa level, const Body& portable, const Body& avx2, const Body& avx512) {
  if (level >= Isa::kAvx512) return avx512;
  if (level >= Isa::kAvx2) return avx2;
  return portable;
}

// The same at the level in force on the calling thread: call it before a parallel region.
template <class Body>
const Body& pick(const Body& portable, const Body& avx2, const Body& avx512) {
  return pick(isa(), portable, avx2, avx512);
}

}  // namespace plimsoll::runtime
