// Encode and decode shared by every sign-exponent-mantissa format narrower than FP32. Encoding is integer work: the
// result depends neither on the rounding mode nor on flush-to-zero, and it rounds once, straight from FP32.
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"
#include "plimsoll/format/host_device.h"

namespace plimsoll::format {

template <Format kFormatName, class CodeType, int kExponentBits, int kMantissaBits>
struct SmallFloat {
  using Code = CodeType;
  static constexpr Format kFormat = kFormatName;
  static constexpr int kBits = info(kFormatName).bits;
  static constexpr bool kHasInf = info(kFormatName).has_inf, kHasNan = info(kFormatName).has_nan;
  static constexpr float kMaxFinite = info(kFormatName).max_finite, kMinSubnormal = info(kFormatName).min_subnormal;

  static constexpr int kMinExponent = 2 - (1 << (kExponentBits - 1));  // of the smallest normal value
  static constexpr uint32_t kSignBit = 1u << (kExponentBits + kMantissaBits);
  static constexpr uint32_t kMagnitudeMask = kSignBit - 1;
  static constexpr uint32_t kInfCode = ((1u << kExponentBits) - 1) << kMantissaBits;  // where kHasInf
  static constexpr uint32_t kMaxCode = kHasInf ? kInfCode - 1 : kMagnitudeMask - (kHasNan ? 1u : 0u);

  // Nearest, ties to even. NaN stays NaN and keeps its sign; so does zero.
  PLIMSOLL_HD static constexpr Code encode(float x, Overflow overflow = Overflow::kSaturate) {
    return encode_bits(x, overflow, divide_even);
  }

  // The same of NaN and Inf alone.
  PLIMSOLL_HD static constexpr Code encode_non_finite(float x, Overflow overflow = Overflow::kSaturate) {
    const uint32_t bits = bit_cast<uint32_t>(x);
    const uint32_t sign = (bits >> 31) != 0 ? kSignBit : 0u;
    return static_cast<Code>(sign |
                             ((bits & 0x7fffffffu) > 0x7f800000u ? nan_code(bits) : overflow_code(overflow, true)));
  }

  // A value between two codes goes up with the probability of its distance from the lower one. The distance is rounded to
  // the nearest multiple of 2^-16 of the gap (ties to even), so that it errs by at most 2^-17 to either side, and x goes up
  // if random_bits + distance reach 2^16. "Up" and "lower" are in magnitude. Representable values never move.
  PLIMSOLL_HD static constexpr Code encode_stochastic_16(float x, uint16_t random_bits,
                                                         Overflow overflow = Overflow::kSaturate) {
    return encode_bits(x, overflow, [random_bits](uint32_t significand, int shift) {
      const uint32_t fixed = shift > 16 ? divide_even(significand, shift - 16) : significand << (16 - shift);
      return (fixed + random_bits) >> 16;
    });
  }

  PLIMSOLL_HD static constexpr float decode(Code code) {
    const uint32_t sign = (uint32_t{code} & kSignBit) << (31 - kExponentBits - kMantissaBits);
    const uint32_t magnitude = uint32_t{code} & kMagnitudeMask;
    if (magnitude > kMaxCode) {
      if (kHasInf && magnitude == kInfCode) return bit_cast<float>(sign | 0x7f800000u);
      return bit_cast<float>(sign | kQuietNan | ((magnitude & kMantissaMask) << (23 - kMantissaBits)));
    }
    const uint32_t exponent = magnitude >> kMantissaBits, mantissa = magnitude & kMantissaMask;
    if (exponent != 0 || kMinExponent == -126) {  // BF16 shares FP32's exponents, subnormals included
      const uint32_t rebias = kMinExponent == -126 ? 0u : static_cast<uint32_t>(126 + kMinExponent);
      return bit_cast<float>(sign | ((exponent + rebias) << 23) | (mantissa << (23 - kMantissaBits)));
    }
    const float value = static_cast<float>(mantissa) * kMinSubnormal;
    return sign != 0 ? -value : value;
  }

 private:
  static constexpr uint32_t kMantissaMask = (1u << kMantissaBits) - 1;
  static constexpr uint32_t kQuietNan = 0x7fc00000u;

  // NaN as the processors' own converters make it: 16-bit formats keep the leading payload bits, FP8 is all ones. E2M1
  // has no NaN and shows its largest magnitude.
  PLIMSOLL_HD static constexpr uint32_t nan_code(uint32_t bits) {
    if (!kHasNan) return kMaxCode;
    if (kBits == 8) return kMagnitudeMask;
    return kInfCode | (1u << (kMantissaBits - 1)) | ((bits & 0x7fffffu) >> (23 - kMantissaBits));
  }

  PLIMSOLL_HD static constexpr uint32_t overflow_code(Overflow overflow, bool is_inf) {
    if (kHasInf && (is_inf || kBits == 16 || overflow == Overflow::kNonFinite)) return kInfCode;
    if (overflow == Overflow::kSaturate) return kMaxCode;
    return kHasNan ? kMagnitudeMask : kMaxCode;
  }

  // significand / 2^shift as an integer, nearest even; significand < 2^24, shift >= 1.
  PLIMSOLL_HD static constexpr uint32_t divide_even(uint32_t significand, int shift) {
    if (shift > 25) return 0u;  // below half: significand < 2^24
    const uint32_t kept = significand >> shift;
    const uint32_t rest = significand & ((1u << shift) - 1), half = 1u << (shift - 1);
    return kept + (rest > half || (rest == half && (kept & 1u) != 0) ? 1u : 0u);
  }

  // round(significand, shift) = significand / 2^shift as an integer; significand < 2^24, shift >= 1.
  template <class Round>
  PLIMSOLL_HD static constexpr Code encode_bits(float x, Overflow overflow, Round round) {
    const uint32_t bits = bit_cast<uint32_t>(x);
    const uint32_t sign = (bits >> 31) != 0 ? kSignBit : 0u;
    const uint32_t absolute = bits & 0x7fffffffu;
    if (absolute >= 0x7f800000u) return encode_non_finite(x, overflow);

    const uint32_t biased = absolute >> 23;
    const uint32_t significand = (absolute & 0x7fffffu) | (biased != 0 ? 0x800000u : 0u);
    const int exponent = (biased != 0 ? static_cast<int>(biased) : 1) - 127;
    const int code_exponent = exponent > kMinExponent ? exponent : kMinExponent;
    const uint32_t rounded = round(significand, 23 - kMantissaBits + (code_exponent - exponent));
    // A carry out of the mantissa moves to the next exponent by itself.
    const uint32_t magnitude = (static_cast<uint32_t>(code_exponent - kMinExponent) << kMantissaBits) + rounded;
    return static_cast<Code>(sign | (magnitude > kMaxCode ? overflow_code(overflow, false) : magnitude));
  }
};

}  // namespace plimsoll::format
