// vector.h in GCC's and Clang's vector extensions: four groups of four lanes, which every 64-bit x86 and Arm processor
// has.
#pragma once

#include <cstdint>
#include <cstring>

#include "plimsoll/format/bf16.h"
#include "plimsoll/format/fp16.h"

#define PLIMSOLL_INLINE static inline __attribute__((always_inline))
// What takes many instructions on four lanes at a time is called: inlined at each use, it would cost compilers minutes.
#define PLIMSOLL_LONG static __attribute__((noinline, unused))

namespace plimsoll::kernels {
namespace {

typedef float F32x4 __attribute__((vector_size(16)));
typedef int32_t I32x4 __attribute__((vector_size(16)));
typedef uint32_t U32x4 __attribute__((vector_size(16)));
typedef uint16_t U16x8 __attribute__((vector_size(16)));

struct F32x16 {
  F32x4 v[4];
};
struct I32x16 {
  I32x4 v[4];
};
struct Mask16 {
  I32x4 v[4];  // 0 or -1
};

template <class Result, class Function>
PLIMSOLL_INLINE Result groups(Function function) {
  return {{function(0), function(1), function(2), function(3)}};
}

PLIMSOLL_INLINE F32x16 set(float x) {
  return groups<F32x16>([x](int) { return F32x4{x, x, x, x}; });
}
PLIMSOLL_INLINE F32x16 zero() { return set(0.0f); }
PLIMSOLL_INLINE I32x16 set_i(int32_t x) {
  return groups<I32x16>([x](int) { return I32x4{x, x, x, x}; });
}

PLIMSOLL_INLINE F32x16 load(const float* p) {
  F32x16 x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}
PLIMSOLL_INLINE void store(float* p, F32x16 x) { std::memcpy(p, &x, sizeof(x)); }

PLIMSOLL_LONG F32x16 load_bf16(const uint16_t* p) {
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = format::Bf16::decode(p[i]);
  return load(lanes);
}
PLIMSOLL_LONG F32x16 load_fp16(const uint16_t* p) {
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = format::Fp16::decode(p[i]);
  return load(lanes);
}
PLIMSOLL_LONG I32x16 load_u8(const uint8_t* p) {
  int32_t lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = p[i];
  I32x16 x;
  std::memcpy(&x, lanes, sizeof(x));
  return x;
}
PLIMSOLL_LONG void store_bf16(uint16_t* p, F32x16 x) {
  float lanes[16];
  store(lanes, x);
  for (int i = 0; i < 16; ++i) p[i] = format::Bf16::encode(lanes[i]);
}
PLIMSOLL_LONG void store_bf16_32(uint16_t* p, F32x16 a, F32x16 b) {
  store_bf16(p, a);
  store_bf16(p + 16, b);
}
PLIMSOLL_LONG void store_upper_32(uint16_t* p, I32x16 a, I32x16 b) {
  uint32_t words[32];
  std::memcpy(words, &a, sizeof(a));
  std::memcpy(words + 16, &b, sizeof(b));
  for (int i = 0; i < 32; ++i) p[i] = static_cast<uint16_t>(words[i] >> 16);
}
PLIMSOLL_LONG void store_fp16(uint16_t* p, F32x16 x) {
  float lanes[16];
  store(lanes, x);
  for (int i = 0; i < 16; ++i) p[i] = format::Fp16::encode(lanes[i]);
}
PLIMSOLL_LONG void store_u8(uint8_t* p, I32x16 x) {
  int32_t lanes[16];
  std::memcpy(lanes, &x, sizeof(x));
  for (int i = 0; i < 16; ++i) p[i] = static_cast<uint8_t>(lanes[i]);
}

#include "plimsoll/kernels/simd/vector_tail.inc"

PLIMSOLL_INLINE F32x16 add(F32x16 a, F32x16 b) {
  return groups<F32x16>([&](int i) { return a.v[i] + b.v[i]; });
}
PLIMSOLL_INLINE F32x16 sub(F32x16 a, F32x16 b) {
  return groups<F32x16>([&](int i) { return a.v[i] - b.v[i]; });
}
PLIMSOLL_INLINE F32x16 mul(F32x16 a, F32x16 b) {
  return groups<F32x16>([&](int i) { return a.v[i] * b.v[i]; });
}
PLIMSOLL_INLINE F32x16 div(F32x16 a, F32x16 b) {
  return groups<F32x16>([&](int i) { return a.v[i] / b.v[i]; });
}
PLIMSOLL_LONG F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  float x[16], y[16], z[16];
  store(x, a);
  store(y, b);
  store(z, c);
  for (int i = 0; i < 16; ++i) z[i] = __builtin_fmaf(x[i], y[i], z[i]);
  return load(z);
}
PLIMSOLL_INLINE F32x16 fnma(F32x16 a, F32x16 b, F32x16 c) {
  const F32x16 negative = groups<F32x16>([&](int i) { return -a.v[i]; });
  return fma(negative, b, c);
}
PLIMSOLL_INLINE F32x16 min(F32x16 a, F32x16 b) {
  return groups<F32x16>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
PLIMSOLL_INLINE F32x16 max(F32x16 a, F32x16 b) {
  return groups<F32x16>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
PLIMSOLL_LONG F32x16 sqrt(F32x16 a) {
  float lanes[16];
  store(lanes, a);
  for (int i = 0; i < 16; ++i) lanes[i] = __builtin_sqrtf(lanes[i]);
  return load(lanes);
}

PLIMSOLL_INLINE I32x16 bits(F32x16 a) {
  return groups<I32x16>([&](int i) { return reinterpret_cast<I32x4>(a.v[i]); });
}
PLIMSOLL_INLINE F32x16 from_bits(I32x16 a) {
  return groups<F32x16>([&](int i) { return reinterpret_cast<F32x4>(a.v[i]); });
}
PLIMSOLL_INLINE F32x16 to_float(I32x16 a) {
  return groups<F32x16>([&](int i) { return __builtin_convertvector(a.v[i], F32x4); });
}
PLIMSOLL_INLINE I32x16 to_int(F32x16 a) {
  return groups<I32x16>([&](int i) { return __builtin_convertvector(a.v[i], I32x4); });
}

PLIMSOLL_INLINE I32x16 and_i(I32x16 a, I32x16 b) {
  return groups<I32x16>([&](int i) { return a.v[i] & b.v[i]; });
}
PLIMSOLL_INLINE I32x16 or_i(I32x16 a, I32x16 b) {
  return groups<I32x16>([&](int i) { return a.v[i] | b.v[i]; });
}
PLIMSOLL_INLINE I32x16 xor_i(I32x16 a, I32x16 b) {
  return groups<I32x16>([&](int i) { return a.v[i] ^ b.v[i]; });
}
// Through unsigned lanes, where wrapping is defined.
PLIMSOLL_INLINE I32x16 add_i(I32x16 a, I32x16 b) {
  return groups<I32x16>([&](int i) {
    return reinterpret_cast<I32x4>(reinterpret_cast<U32x4>(a.v[i]) + reinterpret_cast<U32x4>(b.v[i]));
  });
}
PLIMSOLL_INLINE I32x16 sub_i(I32x16 a, I32x16 b) {
  return groups<I32x16>([&](int i) {
    return reinterpret_cast<I32x4>(reinterpret_cast<U32x4>(a.v[i]) - reinterpret_cast<U32x4>(b.v[i]));
  });
}
PLIMSOLL_INLINE I32x16 min_i(I32x16 a, I32x16 b) {
  return groups<I32x16>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
PLIMSOLL_INLINE I32x16 max_i(I32x16 a, I32x16 b) {
  return groups<I32x16>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
PLIMSOLL_INLINE I32x16 max_u16(I32x16 a, I32x16 b) {
  return groups<I32x16>([&](int g) {
    const U16x8 x = reinterpret_cast<U16x8>(a.v[g]), y = reinterpret_cast<U16x8>(b.v[g]);
    return reinterpret_cast<I32x4>(x > y ? x : y);
  });
}
template <int kBits>
PLIMSOLL_INLINE I32x16 shift_left(I32x16 a) {
  return groups<I32x16>([&](int i) { return reinterpret_cast<I32x4>(reinterpret_cast<U32x4>(a.v[i]) << kBits); });
}
template <int kBits>
PLIMSOLL_INLINE I32x16 shift_right(I32x16 a) {
  return groups<I32x16>([&](int i) { return reinterpret_cast<I32x4>(reinterpret_cast<U32x4>(a.v[i]) >> kBits); });
}
PLIMSOLL_INLINE F32x16 abs(F32x16 a) { return from_bits(and_i(bits(a), set_i(0x7fffffff))); }

PLIMSOLL_INLINE Mask16 less(F32x16 a, F32x16 b) {
  return groups<Mask16>([&](int i) { return a.v[i] < b.v[i]; });
}
PLIMSOLL_INLINE Mask16 less_equal(F32x16 a, F32x16 b) {
  return groups<Mask16>([&](int i) { return a.v[i] <= b.v[i]; });
}
PLIMSOLL_INLINE Mask16 equal(F32x16 a, F32x16 b) {
  return groups<Mask16>([&](int i) { return a.v[i] == b.v[i]; });
}
PLIMSOLL_INLINE Mask16 less_i(I32x16 a, I32x16 b) {
  return groups<Mask16>([&](int i) { return a.v[i] < b.v[i]; });
}
PLIMSOLL_INLINE I32x16 select_i(Mask16 m, I32x16 yes, I32x16 no) {
  return groups<I32x16>([&](int i) { return (m.v[i] & yes.v[i]) | (~m.v[i] & no.v[i]); });
}
PLIMSOLL_INLINE F32x16 select(Mask16 m, F32x16 yes, F32x16 no) { return from_bits(select_i(m, bits(yes), bits(no))); }
PLIMSOLL_INLINE bool any(Mask16 m) {
  const I32x4 either = m.v[0] | m.v[1] | m.v[2] | m.v[3];
  return (either[0] | either[1] | either[2] | either[3]) != 0;
}
PLIMSOLL_INLINE bool all(Mask16 m) {
  const I32x4 both = m.v[0] & m.v[1] & m.v[2] & m.v[3];
  return (both[0] & both[1] & both[2] & both[3]) != 0;
}

// Adding 2^23 to the magnitude leaves the nearest integer in the mantissa; larger values are integers already. Zero
// keeps its sign.
PLIMSOLL_LONG F32x16 round_even(F32x16 a) {
  const F32x16 magic = set(8388608.0f), magnitude = abs(a);
  const F32x16 nearest = sub(add(magnitude, magic), magic);
  const I32x16 sign = and_i(bits(a), set_i(INT32_MIN));
  return select(less(magnitude, magic), from_bits(or_i(bits(nearest), sign)), a);
}

// Lane i + lane i + 8, then + 4, + 2, + 1.
PLIMSOLL_INLINE float reduce_add(F32x16 a) {
  const F32x4 four = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
  return (four[0] + four[2]) + (four[1] + four[3]);
}
PLIMSOLL_INLINE float first_lane(F32x16 a) { return a.v[0][0]; }
PLIMSOLL_LONG int32_t reduce_max_i(I32x16 a) {
  int32_t lanes[16];
  std::memcpy(lanes, &a, sizeof(lanes));
  int32_t largest = lanes[0];
  for (int i = 1; i < 16; ++i) largest = lanes[i] > largest ? lanes[i] : largest;
  return largest;
}

}  // namespace
}  // namespace plimsoll::kernels
