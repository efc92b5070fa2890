// Bringing nearer what is written next. Internal linkage, because ISA files use it.
#pragma once

#include "plimsoll/kernels/gemm/gemm_isa.h"

namespace plimsoll::kernels {
namespace {

// A row, into L1, to be written.
static inline __attribute__((always_inline)) void touch(const RowBytes& bytes, int64_t row) {
  const char* data = bytes.data + row * bytes.stride;
  for (int64_t byte = 0; byte < bytes.count; byte += 64) __asm__ volatile("prefetchw %0" : : "m"(data[byte]));
  if (bytes.count > 0) __asm__ volatile("prefetchw %0" : : "m"(data[bytes.count - 1]));
}

}  // namespace
}  // namespace plimsoll::kernels
