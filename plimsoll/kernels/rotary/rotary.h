// Rotary positions: pairs of a head's channels are turned by the angles of their token's position. Source: Su et al.,
// "RoFormer", 2021. Same bits on every ISA and for any number of threads.
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"

namespace plimsoll::kernels {

struct Rotary {
  int64_t tokens = 0, heads = 0, channels = 0;
  int64_t rotated = 0;                            // the first channels, even; the others are copied
  int64_t copied_heads = 0;                       // the last heads, which are not turned
  const void* x = nullptr;                        // [tokens, heads, channels]
  int64_t x_token_stride = 0, x_head_stride = 0;  // elements; channels are contiguous
  void* y = nullptr;                              // [tokens, heads, channels], contiguous
  format::Format format = format::Format::kFp32;  // of both: fp32, bf16, fp16
  const float* cosine = nullptr;                  // [positions, rotated]
  const float* sine = nullptr;                    // [positions, rotated]
  int64_t positions = 0, repeats = 1;             // token t stands at (t / repeats) % positions
  bool interleaved = false;                       // pairs are channels 2i and 2i + 1, not i and i + rotated / 2
  bool transposed = false;                        // of a gradient: the transposed matrix of each pair
};

// With (a, b) a pair, (c, d) and (s, t) its cosines and sines: (a c - b s, b d + a t); transposed (a c + b t, b d - a
// s). Each product and sum rounds once in FP32, the result once more to its format.
void rotary(const Rotary& args);

}  // namespace plimsoll::kernels
