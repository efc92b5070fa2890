// Whether this processor's tiles compute what the kernels rely on. Private to this folder.
#pragma once

#include <cstdint>

namespace plimsoll::runtime {

// One product of tiles of BF16 pairs: sum [16, 16] += a * b, pairs along k.
struct TilePairs {
  const uint16_t* a;  // [16, 16 pairs]
  const uint16_t* b;  // [16 pairs, 16]
  float* sum;         // [16, 16]
};
void multiply_tile_amx(const TilePairs& args);

// The definition (Intel SDM, TDPBF16PS): over the pairs one chain of FP32 fused multiply-adds from zero for the first
// of each pair, one for the second; sum += first + second; nearest even; subnormals count as zero going in and coming
// out.
void multiply_tile_defined(const TilePairs& args);

// multiply_tile_amx gives the bits of the definition on numbers that round, cancel and vanish.
bool tiles_multiply_as_defined();

}  // namespace plimsoll::runtime
