#include "plimsoll/runtime/tile_check.h"

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>

namespace plimsoll::runtime {
namespace {

constexpr int kSide = 16;  // rows of a tile, and dwords in one of them

float flushed(float x) { return std::fabs(x) < FLT_MIN ? std::copysign(0.0f, x) : x; }
float value(uint16_t bf16) { return flushed(std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16)); }

struct Problem {
  uint16_t a[kSide * kSide * 2], b[kSide * kSide * 2];
  float sum[kSide * kSide];
};

// Exponents around that of 1 in most rows of A, so that sums round and cancel; row 1 is subnormal, and what row 2
// makes.
Problem problem() {
  Problem p;
  uint32_t state = 1;
  const auto draw = [&state] {
    state = state * 1664525u + 1013904223u;  // Numerical Recipes' generator
    return state >> 12;
  };
  const auto bf16 = [&draw](uint32_t exponent) {
    const uint32_t bits = draw();
    return static_cast<uint16_t>((bits & 0x8000u) | exponent << 7 | (bits & 0x7fu));
  };
  for (int i = 0; i < kSide * kSide * 2; ++i) {
    const int row = i / (2 * kSide);
    p.a[i] = bf16(row == 1 ? 0 : row == 2 ? 20 : 120 + draw() % 12);
    p.b[i] = bf16(row == 3 ? 0 : 90 + draw() % 8);
  }
  for (float& sum : p.sum) sum = static_cast<float>(draw()) * 0x1p-54f - 0x1p-35f;
  return p;
}

}  // namespace

void multiply_tile_defined(const TilePairs& args) {
  for (int row = 0; row < kSide; ++row) {
    for (int column = 0; column < kSide; ++column) {
      float chain[2] = {};
      for (int pair = 0; pair < kSide; ++pair) {
        for (int i = 0; i < 2; ++i) {
          const float x = value(args.a[(row * kSide + pair) * 2 + i]);
          const float y = value(args.b[(pair * kSide + column) * 2 + i]);
          chain[i] = flushed(std::fma(x, y, chain[i]));
        }
      }
      float& sum = args.sum[row * kSide + column];
      sum = flushed(flushed(sum) + flushed(chain[0] + chain[1]));
    }
  }
}

bool tiles_multiply_as_defined() {
  const Problem start = problem();
  Problem defined = start, measured = start;
  multiply_tile_defined({defined.a, defined.b, defined.sum});
  multiply_tile_amx({measured.a, measured.b, measured.sum});
  return std::memcmp(defined.sum, measured.sum, sizeof(defined.sum)) == 0;
}

}  // namespace plimsoll::runtime
