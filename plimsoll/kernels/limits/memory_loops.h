// The loops behind memory_pass.h, one set an ISA. Private to this folder.
#pragma once

#include <cstdint>

namespace plimsoll::kernels {

// Counts are in words of 64 bytes.
struct MemoryLoops {
  void (*read)(const float* from, int64_t words);
  void (*write)(float* to, int64_t words);
  void (*copy)(float* to, const float* from, int64_t words);
  void (*rewrite)(float* at, int64_t words);
};

extern const MemoryLoops kMemoryLoopsPortable, kMemoryLoopsAvx2, kMemoryLoopsAvx512;

}  // namespace plimsoll::kernels
