// CMake compiles x_loops.inc once for each instruction set, with PLIMSOLL_ISA = Portable, Avx2 or Avx512.
#pragma once

#define PLIMSOLL_JOIN_WORDS(a, b) a##b
#define PLIMSOLL_JOIN(a, b) PLIMSOLL_JOIN_WORDS(a, b)

// kNormLoopsAvx2 for PLIMSOLL_FOR_ISA(kNormLoops).
#define PLIMSOLL_FOR_ISA(name) PLIMSOLL_JOIN(name, PLIMSOLL_ISA)
