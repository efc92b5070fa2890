// A dword of narrow values, consecutive along k, to the dwords that are multiplied. Internal linkage, because ISA files
// use it: see simd/vector.h.
#pragma once

#include <cstdint>

#include "plimsoll/kernels/gemm/arranged_quads.h"
#include "plimsoll/kernels/gemm/fp8_quads.h"
#include "plimsoll/kernels/gemm/gemm_isa.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

// Dwords between what is read of a stored B and what is asked for: 4 KiB, which did better than 2, 8 and nothing.
constexpr int64_t kStreamAhead = 1024;

constexpr int64_t bytes_of(Format format) {
  return format == Format::kFp32 ? 4 : format == Format::kFp16 || format == Format::kBf16 ? 2 : 1;
}
constexpr int64_t dwords_from(Format format, Dword to) { return 4 / bytes_of(format) / depth_of(to); }

constexpr Format format_of(Dword stored) {
  switch (stored) {
    case Dword::kBf16Pair:
      return Format::kBf16;
    case Dword::kFp16Pair:
      return Format::kFp16;
    case Dword::kE4m3Quad:
    case Dword::kE4m3Blocks:
      return Format::kE4m3;
    case Dword::kE5m2Quad:
      return Format::kE5m2;
    case Dword::kNvfp4Octet:
    case Dword::kMxfp4Octet:
      return Format::kE2m1;  // octets.h
    case Dword::kFp32:
    case Dword::kFp16Split:  // expanded to FP32
      return Format::kFp32;
  }
  runtime::unexpected("gemm: stored dword", static_cast<int>(stored));
}

PLIMSOLL_INLINE void store_dwords(uint32_t* to, I32x16 x) { store(reinterpret_cast<float*>(to), from_bits(x)); }
PLIMSOLL_INLINE I32x16 load_dwords(const void* from) { return bits(load(static_cast<const float*>(from))); }

PLIMSOLL_INLINE I32x16 join_pair(F32x16 even, F32x16 odd) {
  return or_i(shift_right<16>(bits(even)), and_i(bits(odd), set_i(INT32_C(-0x10000))));
}

// FP16 values in the lower halves.
PLIMSOLL_INLINE F32x16 decode_low_fp16(I32x16 x) {
#if defined(__AVX512F__)
  return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(x.v))};
#elif defined(__AVX2__)
  const __m256i low = _mm256_set1_epi32(0xffff);
  const __m256i mixed = _mm256_packus_epi32(_mm256_and_si256(x.a, low), _mm256_and_si256(x.b, low));
  const __m256i halves = _mm256_permute4x64_epi64(mixed, 0xd8);
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
#else
  uint32_t dwords[16];
  uint16_t halves[16];
  store_dwords(dwords, x);
  for (int i = 0; i < 16; ++i) halves[i] = static_cast<uint16_t>(dwords[i]);
  return load_fp16(halves);
#endif
}

template <Format kFormat, Dword kTo>
PLIMSOLL_INLINE void decode_dword(I32x16 dword, I32x16 (&decoded)[dwords_from(kFormat, kTo)]) {
  if constexpr (bytes_of(kFormat) == 1 && kTo == Dword::kFp32) {
    F32x16 value[4];
    decode_quads<kFormat>(dword, value);
    for (int i = 0; i < 4; ++i) decoded[i] = bits(value[i]);
  } else if constexpr (bytes_of(kFormat) == 1 && kTo == Dword::kBf16Pair) {
    decode_quads_to_pairs<kFormat>(dword, decoded[0], decoded[1]);
  } else if constexpr (kFormat == Format::kFp16 && kTo == Dword::kFp32) {
    decoded[0] = bits(decode_low_fp16(dword));
    decoded[1] = bits(decode_low_fp16(shift_right<16>(dword)));
  } else if constexpr (kFormat == Format::kBf16 && kTo == Dword::kFp32) {
    decoded[0] = shift_left<16>(dword);
    decoded[1] = and_i(dword, set_i(INT32_C(-0x10000)));
  } else if constexpr (kTo == Dword::kE4m3Quad) {
    decoded[0] = arrange_quads(dword);
  } else {
    decoded[0] = dword;
  }
}

// The same of dwords as a packed B holds them, 32 of them.
template <Dword kStored, Dword kTo>
PLIMSOLL_INLINE void decode_stored(const uint32_t* from, I32x16 (&low)[dwords_from(format_of(kStored), kTo)],
                                   I32x16 (&high)[dwords_from(format_of(kStored), kTo)]) {
  const I32x16 low_dword = load_dwords(from), high_dword = load_dwords(from + 16);
  if constexpr (kStored == Dword::kE4m3Quad && kTo == Dword::kBf16Pair) {
    decode_arranged(low_dword, high_dword, low, high);
  } else if constexpr (kStored == Dword::kE4m3Quad && kTo == Dword::kFp32) {
    F32x16 low_value[4], high_value[4];
    decode_arranged(low_dword, high_dword, low_value, high_value);
    for (int i = 0; i < 4; ++i) {
      low[i] = bits(low_value[i]);
      high[i] = bits(high_value[i]);
    }
  } else {
    decode_dword<format_of(kStored), kTo>(low_dword, low);
    decode_dword<format_of(kStored), kTo>(high_dword, high);
  }
}

}  // namespace
}  // namespace plimsoll::kernels
