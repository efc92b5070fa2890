// FP8 codes four to a dword by byte permutations (AVX-512 VBMI): a table gives each byte of a BF16 value. Included by
// fp8_quads.h.
#pragma once

namespace plimsoll::kernels {
namespace {

// The bytes of the BF16 values of codes without sign.
template <format::Format kFormat>
struct Fp8ByteTables {
  alignas(64) uint8_t upper[128] = {}, lower[128] = {};

  static constexpr int bf16_of(int magnitude) {
    using Layout = Fp8Layout<kFormat>;
    constexpr int kMantissa = Layout::kMantissaBits;
    if (magnitude > Layout::kLargest) {
      if constexpr (!Layout::kHasInf) return 0x7ff0;
      return magnitude == Layout::kLargest + 1 ? 0x7f80 : 0x7fc0 | ((magnitude & 3) << 5);
    }
    if (magnitude == 0) return 0;
    int leading = kMantissa;  // bit of a subnormal
    while ((magnitude >> leading) == 0) --leading;
    const bool subnormal = leading < kMantissa || magnitude >> kMantissa == 0;
    const int exponent =
        subnormal ? 128 - Layout::kBias - kMantissa + leading : (magnitude >> kMantissa) + 127 - Layout::kBias;
    const int fraction = subnormal ? (magnitude << (7 - leading)) & 0x7f : (magnitude << (7 - kMantissa)) & 0x7f;
    return (exponent << 7) | fraction;
  }

  constexpr Fp8ByteTables() {
    for (int i = 0; i < 128; ++i) {
      upper[i] = static_cast<uint8_t>(bf16_of(i) >> 8);
      lower[i] = static_cast<uint8_t>(bf16_of(i) & 0xff);
    }
  }
};
template <format::Format kFormat>
constexpr Fp8ByteTables<kFormat> kFp8Bytes;

// What is written to each byte of a dword: one of `lower` (by its place) or, with kUpper added, one of `upper`.
constexpr char kUpper = 64;
struct ByteOrder {
  alignas(64) char place[64] = {};
  // Byte j of each dword is bytes[j] of the same dword of the source.
  constexpr ByteOrder(char b0, char b1, char b2, char b3) {
    for (int lane = 0; lane < 64; lane += 4) {
      place[lane] = static_cast<char>(b0 + lane);
      place[lane + 1] = static_cast<char>(b1 + lane);
      place[lane + 2] = static_cast<char>(b2 + lane);
      place[lane + 3] = static_cast<char>(b3 + lane);
    }
  }
};
constexpr ByteOrder kPairs[2] = {{0, kUpper, 1, kUpper + 1}, {2, kUpper + 2, 3, kUpper + 3}};
constexpr ByteOrder kValues[4] = {
    {0, 0, 0, kUpper}, {0, 0, 1, kUpper + 1}, {0, 0, 2, kUpper + 2}, {0, 0, 3, kUpper + 3}};

struct Bf16Bytes {
  __m512i lower, upper;
};

template <format::Format kFormat>
PLIMSOLL_INLINE Bf16Bytes bf16_bytes(I32x16 codes) {
  auto find = [&](const uint8_t* table) __attribute__((always_inline)) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), codes.v, _mm512_load_si512(table + 64));
  };
  constexpr int kOrAnd = 0xf8;  // a | (b & c)
  return {find(kFp8Bytes<kFormat>.lower),
          _mm512_ternarylogic_epi32(find(kFp8Bytes<kFormat>.upper), codes.v, _mm512_set1_epi8(-0x80), kOrAnd)};
}

template <format::Format kFormat>
PLIMSOLL_INLINE void decode_quads_to_pairs(I32x16 codes, I32x16& first, I32x16& second) {
  const Bf16Bytes bytes = bf16_bytes<kFormat>(codes);
  first.v = _mm512_permutex2var_epi8(bytes.lower, _mm512_load_si512(kPairs[0].place), bytes.upper);
  second.v = _mm512_permutex2var_epi8(bytes.lower, _mm512_load_si512(kPairs[1].place), bytes.upper);
}

template <format::Format kFormat>
PLIMSOLL_INLINE void decode_quads(I32x16 codes, F32x16 (&value)[4]) {
  constexpr __mmask64 kUpperHalves = 0xcccccccccccccccc;
  const Bf16Bytes bytes = bf16_bytes<kFormat>(codes);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    value[i] = from_bits(
        {_mm512_maskz_permutex2var_epi8(kUpperHalves, bytes.lower, _mm512_load_si512(kValues[i].place), bytes.upper)});
  }
}

}  // namespace
}  // namespace plimsoll::kernels
