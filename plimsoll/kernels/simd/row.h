// Rows of FP32, the form in which elementwise kernels compute: read_row decodes into L1, write_row encodes from it, so
// that a kernel is written once for all formats. The sums have one shape for every ISA.
#pragma once

#include "plimsoll/format/format.h"
#include "plimsoll/kernels/simd/codec.h"
#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

// The second argument of a row's body: all 16 lanes, or an int64_t in its place for the first n.
struct AllLanes {};

PLIMSOLL_INLINE F32x16 load(const float* p, AllLanes) { return load(p); }
PLIMSOLL_INLINE F32x16 load(const float* p, int64_t n) { return load_n(p, n); }
PLIMSOLL_INLINE void store(float* p, F32x16 x, AllLanes) { store(p, x); }
PLIMSOLL_INLINE void store(float* p, F32x16 x, int64_t n) { store_n(p, x, n); }
PLIMSOLL_INLINE F32x16 keep(F32x16 x, AllLanes) { return x; }
PLIMSOLL_INLINE F32x16 keep(F32x16 x, int64_t n) { return keep_n(x, n); }

// Bytes of an element of kFp32, kBf16, kFp16, kE4m3, kE5m2.
PLIMSOLL_INLINE int64_t bytes_of(format::Format format) {
  if (format == format::Format::kFp32) return 4;
  return format == format::Format::kBf16 || format == format::Format::kFp16 ? 2 : 1;
}

// Asks for the line of a byte that is read, or written, soon; it need not be there.
PLIMSOLL_INLINE void prefetch(const void* p, int64_t byte) { __builtin_prefetch(static_cast<const char*>(p) + byte); }
// Into L2 alone, which can wait for more lines than L1 can: for what lies far apart, where the hardware asks for nothing by itself.
PLIMSOLL_INLINE void prefetch_to_l2(const void* p, int64_t byte) {
  __builtin_prefetch(static_cast<const char*>(p) + byte, 0, 2);
}
PLIMSOLL_INLINE void prefetch_to_write(const void* p, int64_t byte) {
  __builtin_prefetch(static_cast<const char*>(p) + byte, 1);
}

// body(i, lanes) for i = 0, 16, 32, ...
template <class Body>
PLIMSOLL_INLINE void for_lanes(int64_t count, Body body) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) body(i, AllLanes{});
  if (i < count) body(i, count - i);
}

// Short rows go a few together through each pass, so that the sum of one is joined while others are passed over; a row
// of 1,024 elements hides that by itself, and more would not stay in L1.
inline constexpr int64_t kRowsTogether = 4;
PLIMSOLL_INLINE int64_t rows_together(int64_t count) { return count <= 256 ? kRowsTogether : count <= 512 ? 2 : 1; }

// Sums over the row, kCount of them at once: add_terms(i, lanes, sums) adds the terms of the elements that are there to
// sums[0 .. kCount - 1]. Blocks of 1,024 terms in four chains of 16 additions a lane, the blocks in one chain: a term
// passes at most 22 + ceil(count / 1024) additions (16 + 2, the blocks, reduce_add's 4), so the error is at most that
// times 2^-24 times the sum of |term|, to first order.
template <int kCount>
struct RowSums {
  float sum[kCount];
};
template <int kCount, class AddTerms>
PLIMSOLL_INLINE RowSums<kCount> sum_rows(int64_t count, AddTerms add_terms) {
  F32x16 total[kCount];
  for (F32x16& sum : total) sum = zero();
  for (int64_t begin = 0; begin < count; begin += 1024) {
    const int64_t end = count - begin < 1024 ? count : begin + 1024;
    F32x16 chain[4][kCount];
    for (auto& sums : chain) {
      for (F32x16& sum : sums) sum = zero();
    }
    int64_t i = begin;
    for (; i + 64 <= end; i += 64) {
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) add_terms(i + 16 * k, AllLanes{}, chain[k]);
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k, i += 16) {
      const int64_t left = end - i;
      if (left > 0) add_terms(i, left < 16 ? left : 16, chain[k]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j) {
      total[j] = add(total[j], add(add(chain[0][j], chain[1][j]), add(chain[2][j], chain[3][j])));
    }
  }
  RowSums<kCount> result;
  for (int j = 0; j < kCount; ++j) result.sum[j] = reduce_add(total[j]);
  return result;
}

// The sum of the squares of term(i, lanes) over the row, each product and addition rounded once.
template <class Term>
PLIMSOLL_INLINE float sum_squares_row(int64_t count, Term term) {
  return sum_rows<1>(
             count,
             [=](int64_t i, auto lanes, F32x16(&sum)[1]) __attribute__((always_inline)) {
               const F32x16 x = keep(term(i, lanes), lanes);
               sum[0] = fma(x, x, sum[0]);
             })
      .sum[0];
}

// The sum of term(i, lanes) over the row.
template <class Term>
PLIMSOLL_INLINE float sum_row(int64_t count, Term term) {
  return sum_rows<1>(
             count, [=](int64_t i, auto lanes, F32x16(&sum)[1])
                        __attribute__((always_inline)) { sum[0] = add(sum[0], keep(term(i, lanes), lanes)); })
      .sum[0];
}

// Elements i, i + 1, ... of p, whose format is kFp32, kBf16 or kFp16.
template <format::Format kFormat>
PLIMSOLL_INLINE F32x16 load_as(const void* p, int64_t i, AllLanes) {
  const uint16_t* halves = static_cast<const uint16_t*>(p) + i;
  if constexpr (kFormat == format::Format::kBf16) return load_bf16(halves);
  if constexpr (kFormat == format::Format::kFp16) return load_fp16(halves);
  if constexpr (kFormat == format::Format::kFp32) return load(static_cast<const float*>(p) + i);
}
template <format::Format kFormat>
PLIMSOLL_INLINE F32x16 load_as(const void* p, int64_t i, int64_t n) {
  const uint16_t* halves = static_cast<const uint16_t*>(p) + i;
  if constexpr (kFormat == format::Format::kBf16) return load_bf16_n(halves, n);
  if constexpr (kFormat == format::Format::kFp16) return load_fp16_n(halves, n);
  if constexpr (kFormat == format::Format::kFp32) return load_n(static_cast<const float*>(p) + i, n);
}
template <format::Format kFormat>
PLIMSOLL_INLINE void store_as(void* p, int64_t i, F32x16 x, AllLanes) {
  uint16_t* halves = static_cast<uint16_t*>(p) + i;
  if constexpr (kFormat == format::Format::kBf16) store_bf16(halves, x);
  if constexpr (kFormat == format::Format::kFp16) store_fp16(halves, x);
  if constexpr (kFormat == format::Format::kFp32) store(static_cast<float*>(p) + i, x);
}
template <format::Format kFormat>
PLIMSOLL_INLINE void store_as(void* p, int64_t i, F32x16 x, int64_t n) {
  uint16_t* halves = static_cast<uint16_t*>(p) + i;
  if constexpr (kFormat == format::Format::kBf16) store_bf16_n(halves, x, n);
  if constexpr (kFormat == format::Format::kFp16) store_fp16_n(halves, x, n);
  if constexpr (kFormat == format::Format::kFp32) store_n(static_cast<float*>(p) + i, x, n);
}

template <format::Format kFormat>
inline const float* decode_row(const void* p, int64_t offset, int64_t count, float* buffer) {
  for_lanes(count, [=](int64_t i, auto lanes) { store(buffer + i, load_as<kFormat>(p, offset + i, lanes), lanes); });
  return buffer;
}

// Elements offset .. offset + count - 1 of p as FP32: themselves, or decoded into buffer. kFp32, kBf16, kFp16.
inline const float* read_row(format::Format format, const void* p, int64_t offset, int64_t count, float* buffer) {
  if (format == format::Format::kBf16) return decode_row<format::Format::kBf16>(p, offset, count, buffer);
  if (format == format::Format::kFp16) return decode_row<format::Format::kFp16>(p, offset, count, buffer);
  return static_cast<const float*>(p) + offset;
}

// Memory to compute a row in that write_row is then given: in place for FP32, in buffer otherwise.
PLIMSOLL_INLINE float* target_row(format::Format format, void* p, int64_t offset, float* buffer) {
  return format == format::Format::kFp32 ? static_cast<float*>(p) + offset : buffer;
}

// Elements offset .. offset + count - 1 of p: value(i, lanes) for i = 0, 16, 32, ..., each once and in order. FP8:
// encode(value * inv_scale), saturating; the other formats leave inv_scale alone.
template <format::Format kFormat, class Value>
PLIMSOLL_INLINE void store_row(void* p, int64_t offset, int64_t count, float inv_scale, Value value) {
  const AllLanes all;
  int64_t i = 0;
  if constexpr (format::is_fp8(kFormat)) {
    uint8_t* codes = static_cast<uint8_t*>(p) + offset;
    const F32x16 factor = set(inv_scale);
    for (; i + 64 <= count; i += 64) {
      const F32x16 x0 = value(i, all), x1 = value(i + 16, all), x2 = value(i + 32, all), x3 = value(i + 48, all);
      store_fp8_64<kFormat>(codes + i, mul(x0, factor), mul(x1, factor), mul(x2, factor), mul(x3, factor));
    }
    for (; i + 16 <= count; i += 16) store_u8(codes + i, encode_fp8<kFormat>(mul(value(i, all), factor)));
    if (const int64_t left = count - i; left > 0) {
      store_u8_n(codes + i, encode_fp8<kFormat>(mul(value(i, left), factor)), left);
    }
  } else {
    if constexpr (kFormat == format::Format::kBf16) {
      for (; i + 32 <= count; i += 32) {
        const F32x16 low = value(i, all), high = value(i + 16, all);
        store_bf16_32(static_cast<uint16_t*>(p) + offset + i, low, high);
      }
    }
    for (; i + 16 <= count; i += 16) store_as<kFormat>(p, offset + i, value(i, all), all);
    if (const int64_t left = count - i; left > 0) store_as<kFormat>(p, offset + i, value(i, left), left);
  }
}

template <format::Format kFormat>
inline void encode_row(void* p, int64_t offset, int64_t count, const float* row, float inv_scale = 1.0f) {
  store_row<kFormat>(p, offset, count, inv_scale, [=](int64_t i, auto lanes) { return load(row + i, lanes); });
}

// Elements offset .. offset + count - 1 of p from `row`, which target_row chose. FP8: encode(row * inv_scale),
// saturating; the other formats leave inv_scale alone.
inline void write_row(format::Format format, void* p, int64_t offset, int64_t count, const float* row,
                      float inv_scale = 1.0f) {
  if (format == format::Format::kBf16) return encode_row<format::Format::kBf16>(p, offset, count, row, inv_scale);
  if (format == format::Format::kFp16) return encode_row<format::Format::kFp16>(p, offset, count, row, inv_scale);
  if (format == format::Format::kE4m3) return encode_row<format::Format::kE4m3>(p, offset, count, row, inv_scale);
  if (format == format::Format::kE5m2) return encode_row<format::Format::kE5m2>(p, offset, count, row, inv_scale);
}

}  // namespace
}  // namespace plimsoll::kernels
