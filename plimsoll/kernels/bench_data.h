// Elements for benchmarks: random ones of any format, quickly drawn however many.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "plimsoll/format/codec.h"

namespace plimsoll::kernels::bench {

// `count` normally distributed elements; a block of 65,536 drawn ones is repeated.
inline std::vector<uint8_t> random_elements(format::Format format, int64_t count, float deviation = 1.0f) {
  constexpr size_t kDrawn = 65536;
  const auto width = static_cast<size_t>(format::bytes(format));
  std::vector<uint8_t> result(static_cast<size_t>(count) * width);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, deviation);
  const size_t drawn = std::min(kDrawn * width, result.size());
  for (size_t at = 0; at < drawn; at += width) {
    const uint32_t code = format::encode(format, normal(random));
    std::memcpy(&result[at], &code, width);
  }
  for (size_t at = drawn; at < result.size(); at += drawn) {
    std::memcpy(&result[at], result.data(), std::min(drawn, result.size() - at));
  }
  return result;
}

// The first whole cache line of storage, which has 64 bytes to spare: tensors of torch start at one, too.
inline uint8_t* first_line(std::vector<uint8_t>& storage) {
  const auto address = reinterpret_cast<uintptr_t>(storage.data());
  return storage.data() + (64 - address % 64) % 64;
}

}  // namespace plimsoll::kernels::bench
