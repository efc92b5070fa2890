// FP8 encode and decode of 16 lanes, and the amax of what is encoded. The same codes as format/fp8.h, bit for bit.
#pragma once

#include "plimsoll/format/format.h"
#include "plimsoll/kernels/simd/vector.h"

namespace plimsoll::kernels {
namespace {

template <format::Format kFormat>
struct Fp8Layout;

template <>
struct Fp8Layout<format::Format::kE4m3> {
  static constexpr int kMantissaBits = 3, kBias = 7;
  static constexpr int32_t kLargest = 0x7e;  // 448
  static constexpr bool kHasInf = false;
};

template <>
struct Fp8Layout<format::Format::kE5m2> {
  static constexpr int kMantissaBits = 2, kBias = 15;
  static constexpr int32_t kLargest = 0x7b;  // 57344
  static constexpr bool kHasInf = true;
};

// A float whose last mantissa bit is worth one FP8 subnormal: adding it rounds to that grid.
template <format::Format kFormat>
inline constexpr int32_t kGridBits = (128 - Fp8Layout<kFormat>::kBias - Fp8Layout<kFormat>::kMantissaBits + 23) << 23;

// Codes in the low byte of each lane; nearest even. Needs the default rounding mode, as all of this library does.
template <format::Format kFormat, format::Overflow kOverflow = format::Overflow::kSaturate>
PLIMSOLL_LONG I32x16 encode_fp8(F32x16 x) {
  using Layout = Fp8Layout<kFormat>;
  constexpr int kShift = 23 - Layout::kMantissaBits;
  constexpr int32_t kInfBits = 0x7f800000, kNanCode = 0x7f,
                    kInfCode = Layout::kHasInf ? Layout::kLargest + 1 : kNanCode;
  constexpr int32_t kMinNormalBits = (128 - Layout::kBias) << 23;

  const I32x16 magnitude = and_i(bits(x), set_i(0x7fffffff));
  const I32x16 sign = and_i(shift_right<24>(bits(x)), set_i(0x80));
  const I32x16 odd = and_i(shift_right<kShift>(magnitude), set_i(1));
  const I32x16 half = set_i((1 << (kShift - 1)) - 1);
  const I32x16 rounded = shift_right<kShift>(add_i(add_i(magnitude, half), odd));
  I32x16 code = sub_i(rounded, set_i((127 - Layout::kBias) << Layout::kMantissaBits));
  const I32x16 tiny =
      sub_i(bits(add(from_bits(magnitude), from_bits(set_i(kGridBits<kFormat>)))), set_i(kGridBits<kFormat>));
  code = select_i(less_i(magnitude, set_i(kMinNormalBits)), tiny, code);
  if constexpr (kOverflow == format::Overflow::kSaturate) {
    code = min_i(code, set_i(Layout::kLargest));
    if constexpr (Layout::kHasInf) code = select_i(less_i(magnitude, set_i(kInfBits)), code, set_i(kInfCode));
  } else {
    code = select_i(less_i(set_i(Layout::kLargest), code), set_i(kInfCode), code);
  }
  code = select_i(less_i(set_i(kInfBits), magnitude), set_i(kNanCode), code);
  return or_i(code, sign);
}

// Codes in the low byte of each lane, upper bits zero. NaN codes give a quiet NaN with the code's sign.
template <format::Format kFormat>
PLIMSOLL_LONG F32x16 decode_fp8(I32x16 code) {
  using Layout = Fp8Layout<kFormat>;
  constexpr int kShift = 23 - Layout::kMantissaBits;
  constexpr int32_t kSubnormalBits = (128 - Layout::kBias - Layout::kMantissaBits) << 23;  // the smallest subnormal
  const I32x16 magnitude = and_i(code, set_i(0x7f));
  const I32x16 sign = shift_left<24>(and_i(code, set_i(0x80)));
  const I32x16 normal = add_i(shift_left<kShift>(magnitude), set_i((127 - Layout::kBias) << 23));
  const F32x16 tiny = mul(to_float(magnitude), from_bits(set_i(kSubnormalBits)));
  I32x16 value = select_i(less_i(magnitude, set_i(1 << Layout::kMantissaBits)), bits(tiny), normal);
  if constexpr (Layout::kHasInf) {
    value = select_i(less_i(set_i(Layout::kLargest), magnitude), set_i(0x7f800000), value);
    value = select_i(less_i(set_i(Layout::kLargest + 1), magnitude), or_i(value, set_i(0x400000)), value);
    value = or_i(value, select_i(less_i(set_i(Layout::kLargest + 1), magnitude),
                                 shift_left<kShift>(and_i(magnitude, set_i(3))), set_i(0)));
  } else {
    value = select_i(less_i(set_i(Layout::kLargest), magnitude), set_i(0x7ff00000), value);
  }
  return from_bits(or_i(value, sign));
}

// Running amax as integers: NaN > Inf > finite. Finish with from_bits or reduce_max_i.
PLIMSOLL_INLINE I32x16 amax_of(I32x16 running, F32x16 x) { return max_i(running, and_i(bits(x), set_i(0x7fffffff))); }

// Order in which the values of 64 codes stand in four vectors: as they are, or even and odd elements of 32
// (bf16_pairs.h).
enum class Order { kInOrder, kEvenOdd };

template <format::Format kFormat, format::Overflow kOverflow, Order kOrder>
PLIMSOLL_LONG void store_fp8_by_16(uint8_t* codes, F32x16 x0, F32x16 x1, F32x16 x2, F32x16 x3) {
  const auto encode = [](F32x16 x) __attribute__((always_inline)) { return encode_fp8<kFormat, kOverflow>(x); };
  if constexpr (kOrder == Order::kEvenOdd) {
    // A word of codes in the upper half of each lane.
    const I32x16 low = or_i(shift_left<16>(encode(x0)), shift_left<24>(encode(x1)));
    const I32x16 high = or_i(shift_left<16>(encode(x2)), shift_left<24>(encode(x3)));
    uint16_t words[32];
    store_upper_32(words, low, high);
    __builtin_memcpy(codes, words, sizeof(words));
  } else {
    store_u8(codes, encode(x0));
    store_u8(codes + 16, encode(x1));
    store_u8(codes + 32, encode(x2));
    store_u8(codes + 48, encode(x3));
  }
}

}  // namespace
}  // namespace plimsoll::kernels

// store_fp8_64<kFormat, kOverflow, kOrder>(codes, x0, x1, x2, x3): the codes of 64 values, those of encode_fp8.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "plimsoll/kernels/simd/codec_avx512.inc"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "plimsoll/kernels/simd/codec_avx2.inc"
#else
namespace plimsoll::kernels {
namespace {

template <format::Format kFormat, format::Overflow kOverflow = format::Overflow::kSaturate,
          Order kOrder = Order::kInOrder>
PLIMSOLL_INLINE void store_fp8_64(uint8_t* codes, F32x16 x0, F32x16 x1, F32x16 x2, F32x16 x3) {
  store_fp8_by_16<kFormat, kOverflow, kOrder>(codes, x0, x1, x2, x3);
}

}  // namespace
}  // namespace plimsoll::kernels
#endif
