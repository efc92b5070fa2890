// Helpers of the elementwise kernels' tests: arrays of any format, every ISA and thread count, rounding bounds.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "plimsoll/format/codec.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/threads_testing.h"

namespace plimsoll::kernels::testing {

using format::Format;

inline std::vector<runtime::Isa> isas_present() {
  std::vector<runtime::Isa> result;
  for (runtime::Isa isa : {runtime::Isa::kPortable, runtime::Isa::kAvx2, runtime::Isa::kAvx512}) {
    if (isa <= runtime::detected_isa()) result.push_back(isa);
  }
  return result;
}

using runtime::testing::ScopedThreads;

// Elements of one format, one element past any alignment, with guard bytes on both sides.
class Array {
 public:
  Array(Format format, int64_t count) : format_(format), count_(count) {
    const size_t payload = static_cast<size_t>(count) * size();
    bytes_.assign(payload + 2 * kGuard + size(), kFill);
    std::fill_n(start(), payload, static_cast<uint8_t>(0xff));  // NaN in every format: what is not written is seen
  }
  Array(Format format, std::span<const float> values) : Array(format, static_cast<int64_t>(values.size())) {
    for (int64_t i = 0; i < count_; ++i) set(i, values[static_cast<size_t>(i)]);
  }

  void* data() { return start(); }
  const void* data() const { return const_cast<Array*>(this)->start(); }
  float* floats() { return reinterpret_cast<float*>(start()); }
  int64_t count() const { return count_; }

  uint32_t code(int64_t i) const {
    uint32_t code = 0;
    std::memcpy(&code, static_cast<const uint8_t*>(data()) + static_cast<size_t>(i) * size(), size());
    return code;
  }
  float at(int64_t i) const { return format::decode(format_, code(i)); }
  void set(int64_t i, float x) {
    const uint32_t code = format::encode(format_, x);
    std::memcpy(start() + static_cast<size_t>(i) * size(), &code, size());
  }

  bool guards_intact() const {
    const size_t payload = static_cast<size_t>(count_) * size();
    auto untouched = [](uint8_t byte) { return byte == kFill; };
    const auto begin = bytes_.begin(), first = begin + static_cast<std::ptrdiff_t>(kGuard + size());
    return std::all_of(begin, first, untouched) &&
           std::all_of(first + static_cast<std::ptrdiff_t>(payload), bytes_.end(), untouched);
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr uint8_t kFill = 0xa5;
  size_t size() const { return static_cast<size_t>(format::bytes(format_)); }
  uint8_t* start() { return bytes_.data() + kGuard + size(); }

  Format format_;
  int64_t count_;
  std::vector<uint8_t> bytes_;
};

// The same code, or both NaN: which NaN an operation on two NaNs returns is the compiler's choice.
inline bool same(const Array& a, const Array& b, int64_t i) {
  return a.code(i) == b.code(i) || (std::isnan(a.at(i)) && std::isnan(b.at(i)));
}
inline bool same(const Array& a, const Array& b) {
  if (a.count() != b.count()) return false;
  for (int64_t i = 0; i < a.count(); ++i) {
    if (!same(a, b, i)) return false;
  }
  return true;
}
inline std::vector<double> row_of(const Array& array, int64_t row, int64_t cols) {
  std::vector<double> result;
  for (int64_t i = 0; i < cols; ++i) result.push_back(static_cast<double>(array.at(row * cols + i)));
  return result;
}

inline bool same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

// Gaussian values with, from 24 on, zeros of both signs, a subnormal and an outlier in fixed places.
inline std::vector<float> sample(int64_t count, unsigned seed, float mean = 0.0f, float deviation = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<float> result(static_cast<size_t>(count));
  for (float& x : result) x = normal(random);
  if (count >= 24) {
    result[3] = 0.0f;
    result[5] = -0.0f;
    result[7] = 0x1p-140f;
    result[23] = mean + 30 * deviation;
  }
  return result;
}

// gamma(n) of Higham, "Accuracy and Stability of Numerical Algorithms", section 3.1: the relative error of n FP32
// roundings.
inline double gamma(double n) { return n * 0x1p-24 / (1 - n * 0x1p-24); }

// Factor of what bounds that add relative errors leave out: those that add up to s make at most e^s - 1 <= s (1 + s), and
// here s is at most 2^-10.
inline constexpr double kSecondOrder = 1 + 0x1p-10;

// Error of (f(x + h) - f(x - h)) / 2h as the derivative of a function computed in double: h^2 / 6 of its third
// derivative, and in either value `roundings` of numbers of at most `magnitude`.
inline double difference_error(double h, double third_derivative, double roundings, double magnitude) {
  return h * h / 6 * third_derivative + roundings * 0x1p-53 * magnitude / h;
}

// The bound of a result that is rounded to `format` last.
inline double narrow_bound(Format format, double exact, double bound) {
  if (format == Format::kFp32) return bound + 0x1p-149;
  const double unit = std::ldexp(1.0, -format::info(format).mantissa_bits - 1);
  return bound + (std::abs(exact) + bound) * unit + format::info(format).min_subnormal / 2;
}

// Additions that a term passes in sum_row of simd/row.h, and in the sums of row_blocks.h.
inline double sum_depth(int64_t count) { return 22 + static_cast<double>((count + 1023) / 1024); }
inline double column_sum_depth(int64_t rows) { return 64 + 64 + static_cast<double>((rows + 4095) / 4096); }

}  // namespace plimsoll::kernels::testing
