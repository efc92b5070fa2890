// Modes of a session, by how closely it looks and what that costs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace plimsoll::watch {

enum class Mode : uint8_t {
  kOff,     // not at all
  kGuard,   // the amax that each product's kernel finds anyway
  kCount,   // and, of results near an end of their format, the elements that over- or underflow
  kTrap,    // the overflow exception of our FP16 kernels, and what follows from what it finds
  kShadow,  // each operator's operands and results; the one that overflows runs again in FP32
};

inline constexpr std::array<std::string_view, 5> kModeNames = {"off", "guard", "count", "trap", "shadow"};

constexpr std::string_view name(Mode mode) { return kModeNames[static_cast<size_t>(mode)]; }

constexpr std::optional<Mode> parse_mode(std::string_view text) {
  for (size_t i = 0; i < kModeNames.size(); ++i) {
    if (kModeNames[i] == text) return static_cast<Mode>(i);
  }
  return std::nullopt;
}

}  // namespace plimsoll::watch
