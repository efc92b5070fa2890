#include "plimsoll/kernels/limits/limits_isa.h"

namespace plimsoll::kernels {

// Twelve chains of multiplication and addition: more than latency times throughput of any processor.
int64_t multiply_add_portable(int64_t count) {
  typedef float F32x4 __attribute__((vector_size(16)));
  F32x4 sum[12] = {};
#pragma GCC unroll 12
  for (F32x4& lanes : sum) __asm__ volatile("" : "+x"(lanes));  // chains that look alike would be merged into one
  F32x4 factor = {0.5f, 0.5f, 0.5f, 0.5f}, term = {1.0f, 1.0f, 1.0f, 1.0f};
  for (int64_t i = 0; i < count; ++i) {
    __asm__ volatile("" : "+x"(factor), "+x"(term));
#pragma GCC unroll 12
    for (F32x4& lanes : sum) lanes = lanes * factor + term;
  }
#pragma GCC unroll 12
  for (F32x4& lanes : sum) __asm__ volatile("" : : "x"(lanes));
  return 12 * 4 * 2;
}

}  // namespace plimsoll::kernels
