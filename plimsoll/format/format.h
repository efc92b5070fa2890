// The number formats by name, and the facts about each that the rest of the library asks for.
// Sources: OCP 8-bit Floating Point v1.0 (E4M3, E5M2), OCP Microscaling v1.0 (E2M1, E8M0), IEEE 754-2019 (FP16, FP32).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "plimsoll/format/host_device.h"

namespace plimsoll::format {

enum class Format : uint8_t { kFp32, kFp16, kBf16, kE4m3, kE5m2, kE2m1, kE8m0 };

// Code of a finite value beyond the largest finite code.
enum class Overflow : uint8_t {
  kSaturate,   // the largest finite code; Inf too where the format has no Inf
  kNonFinite,  // Inf, or NaN where the format has no Inf
};

struct FormatInfo {
  std::string_view name;
  int bits;
  int mantissa_bits;  // stored, without the hidden one
  float max_finite;
  float min_normal;
  float min_subnormal;  // smallest positive value
  bool has_inf;
  bool has_nan;
};

inline constexpr std::array<FormatInfo, 7> kFormats = {{
    {"fp32", 32, 23, 0x1.fffffep127f, 0x1p-126f, 0x1p-149f, true, true},
    {"fp16", 16, 10, 65504.0f, 0x1p-14f, 0x1p-24f, true, true},
    {"bf16", 16, 7, 0x1.fep127f, 0x1p-126f, 0x1p-133f, true, true},
    {"e4m3", 8, 3, 448.0f, 0x1p-6f, 0x1p-9f, false, true},
    {"e5m2", 8, 2, 57344.0f, 0x1p-14f, 0x1p-16f, true, true},
    {"e2m1", 4, 1, 6.0f, 1.0f, 0.5f, false, false},
    {"e8m0", 8, 0, 0x1p127f, 0x1p-127f, 0x1p-127f, false, true},
}};

constexpr const FormatInfo& info(Format format) { return kFormats[static_cast<size_t>(format)]; }
constexpr float max_finite(Format format) { return info(format).max_finite; }
constexpr int64_t bytes(Format format) { return (info(format).bits + 7) / 8; }
PLIMSOLL_HD constexpr bool is_fp8(Format format) { return format == Format::kE4m3 || format == Format::kE5m2; }
// Formats whose values mean nothing without a scale.
constexpr bool is_code(Format format) { return is_fp8(format) || format == Format::kE2m1; }

constexpr std::optional<Format> parse_format(std::string_view name) {
  for (size_t i = 0; i < kFormats.size(); ++i) {
    if (kFormats[i].name == name) return static_cast<Format>(i);
  }
  return std::nullopt;
}

}  // namespace plimsoll::format
