// Inputs of the quantization tests: a strided, unaligned matrix in any input format, with every kind of value, and its
// elements as floats.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "plimsoll/format/codec.h"
#include "plimsoll/kernels/testing.h"

namespace plimsoll::kernels::testing {

enum class Content {
  kAll,     // zeros, subnormals, largest values, Inf, NaN and one outlier among ordinary ones
  kFinite,  // the same without Inf and NaN
};

class TestMatrix {
 public:
  TestMatrix(format::Format matrix_format, int64_t row_count, int64_t col_count, int64_t padding, Content content)
      : format(matrix_format), rows(row_count), cols(col_count), stride(col_count + padding) {
    // One element in front: no alignment may be assumed.
    bytes_.resize(static_cast<size_t>((rows * stride + 1) * format::bytes(format)));
    std::mt19937 random(static_cast<uint32_t>(rows * 1009 + cols));
    std::normal_distribution<float> normal;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < stride; ++col) set(row, col, normal(random) * 30.0f);
    }
    constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> special = {0.0f,      -0.0f,  0x1p-9f, -0x1p-10f, 0x1.8p-10f, 0x1p-140f,
                                        -0x1p-17f, 448.0f, -464.0f, 465.0f,    57344.0f,   -61440.0f,
                                        3e38f,     -1e5f,  1.5f,    0x1p-6f,   0x1p-14f,   3e-5f,
                                        kInf,      -kInf,  kNan,    -kNan,     -0x1p-6f,   17.0f};
    for (int64_t i = 0; i < rows * cols; i += 3) {
      const float value = special[static_cast<size_t>(random() % special.size())];
      if (content == Content::kFinite && !std::isfinite(format::decode(format, format::encode(format, value))))
        continue;
      set(i / cols, i % cols, value);
    }
  }

  void set(int64_t row, int64_t col, float value) {
    const size_t index = static_cast<size_t>(row * stride + col + 1);
    const uint32_t code = format::encode(format, value);
    if (format == format::Format::kFp32) {
      __builtin_memcpy(&bytes_[index * 4], &code, 4);
    } else {
      __builtin_memcpy(&bytes_[index * 2], &code, 2);
    }
  }
  float at(int64_t row, int64_t col) const {
    const size_t index = static_cast<size_t>(row * stride + col + 1);
    uint32_t code = 0;
    if (format == format::Format::kFp32) {
      __builtin_memcpy(&code, &bytes_[index * 4], 4);
    } else {
      __builtin_memcpy(&code, &bytes_[index * 2], 2);
    }
    return format::decode(format, code);
  }
  const void* data() const { return bytes_.data() + format::bytes(format); }

  const format::Format format;
  const int64_t rows, cols, stride;

 private:
  std::vector<uint8_t> bytes_;
};

// The amax of a region by its definition.
inline float expected_amax(const TestMatrix& x, int64_t row, int64_t col, int64_t rows, int64_t cols) {
  uint32_t largest = 0;
  for (int64_t r = row; r < row + rows; ++r) {
    for (int64_t c = col; c < col + cols; ++c) {
      const uint32_t magnitude = std::bit_cast<uint32_t>(x.at(r, c)) & 0x7fffffffu;
      if (magnitude > largest) largest = magnitude;
    }
  }
  return std::bit_cast<float>(largest);
}
inline float expected_amax(const TestMatrix& x) { return expected_amax(x, 0, 0, x.rows, x.cols); }

inline constexpr format::Format kInputFormats[] = {format::Format::kFp32, format::Format::kBf16, format::Format::kFp16};
inline constexpr format::Format kCodeFormats[] = {format::Format::kE4m3, format::Format::kE5m2};

struct Shape {
  int64_t rows, cols;
};
inline constexpr Shape kShapes[] = {{0, 0},  {0, 5},  {5, 0},   {1, 1},   {1, 15},   {1, 16},
                                    {1, 17}, {3, 31}, {17, 33}, {64, 64}, {65, 513}, {131, 1027}};

}  // namespace plimsoll::kernels::testing
