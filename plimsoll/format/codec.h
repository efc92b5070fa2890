// Encode and decode with the format chosen at run time: for reports, tests and other cold code. Kernels are built per
// format.
#pragma once

#include <bit>
#include <cstdint>

#include "plimsoll/format/bf16.h"
#include "plimsoll/format/e2m1.h"
#include "plimsoll/format/e8m0.h"
#include "plimsoll/format/fp16.h"
#include "plimsoll/format/fp8.h"

namespace plimsoll::format {

// The code of x in the low bits. kFp32: its bit pattern. kE8m0: rounded up.
constexpr uint32_t encode(Format format, float x, Overflow overflow = Overflow::kSaturate) {
  switch (format) {
    case Format::kFp32:
      return std::bit_cast<uint32_t>(x);
    case Format::kFp16:
      return Fp16::encode(x, overflow);
    case Format::kBf16:
      return Bf16::encode(x, overflow);
    case Format::kE4m3:
      return E4m3::encode(x, overflow);
    case Format::kE5m2:
      return E5m2::encode(x, overflow);
    case Format::kE2m1:
      return E2m1::encode(x, overflow);
    case Format::kE8m0:
      return E8m0::encode(x);
  }
  return 0;
}

constexpr float decode(Format format, uint32_t code) {
  switch (format) {
    case Format::kFp32:
      return std::bit_cast<float>(code);
    case Format::kFp16:
      return Fp16::decode(static_cast<uint16_t>(code));
    case Format::kBf16:
      return Bf16::decode(static_cast<uint16_t>(code));
    case Format::kE4m3:
      return E4m3::decode(static_cast<uint8_t>(code));
    case Format::kE5m2:
      return E5m2::decode(static_cast<uint8_t>(code));
    case Format::kE2m1:
      return E2m1::decode(static_cast<uint8_t>(code));
    case Format::kE8m0:
      return E8m0::decode(static_cast<uint8_t>(code));
  }
  return 0;
}

}  // namespace plimsoll::format
