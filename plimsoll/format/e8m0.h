// E8M0 of OCP Microscaling v1.0: powers of two, 2^-127 (code 0) to 2^127 (code 254), for scales only. 255 is NaN.
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"
#include "plimsoll/format/host_device.h"

namespace plimsoll::format {

enum class ScaleRounding : uint8_t {
  kUp,    // the smallest power of two that keeps every value of the block within the format
  kDown,  // OCP Microscaling v1.0, 6.3: floor(log2(amax)) - floor(log2(max_finite)); the largest values can saturate
};

struct E8m0 {
  using Code = uint8_t;
  static constexpr Format kFormat = Format::kE8m0;
  static constexpr Code kNan = 255;

  // The code of the scale for a block with this amax. NaN and Inf give kNan. Exact: no division.
  PLIMSOLL_HD static constexpr Code from_amax(float amax, float max_finite,
                                              ScaleRounding rounding = ScaleRounding::kUp) {
    const Parts value = parts(amax), limit = parts(max_finite);
    if (value.exponent == 128) return kNan;
    if (value.mantissa == 0) return 0;
    const bool carry = rounding == ScaleRounding::kUp && value.mantissa > limit.mantissa;
    const int code = value.exponent - limit.exponent + 127 + (carry ? 1 : 0);
    return static_cast<Code>(code < 0 ? 0 : code > 254 ? 254 : code);
  }

  // The smallest power of two that is not below x >= 0 (kDown: the largest not above). Negative values, NaN and Inf
  // give kNan.
  PLIMSOLL_HD static constexpr Code encode(float x, ScaleRounding rounding = ScaleRounding::kUp) {
    return x < 0 ? kNan : from_amax(x, 1.0f, rounding);
  }

  PLIMSOLL_HD static constexpr float decode(Code code) {
    if (code == kNan) return bit_cast<float>(0x7fc00000u);
    return code == 0 ? 0x1p-127f : bit_cast<float>(uint32_t{code} << 23);
  }

  // 1 / decode(code), exact: what x is multiplied with.
  PLIMSOLL_HD static constexpr float decode_inverse(Code code) {
    return code == kNan ? decode(code) : decode(static_cast<Code>(254 - code));
  }

 private:
  struct Parts {
    int exponent;       // 128 for NaN and Inf
    uint32_t mantissa;  // in [2^23, 2^24), 0 for zero
  };
  PLIMSOLL_HD static constexpr Parts parts(float x) {
    const uint32_t bits = bit_cast<uint32_t>(x) & 0x7fffffffu;
    if (bits == 0) return {-127, 0};
    if (bits >= 0x800000u) return {static_cast<int>(bits >> 23) - 127, (bits & 0x7fffffu) | 0x800000u};
    const int shift = leading_zeros(bits) - 8;
    return {-126 - shift, bits << shift};
  }
};

}  // namespace plimsoll::format
