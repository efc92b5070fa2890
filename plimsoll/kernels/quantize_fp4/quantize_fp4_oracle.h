// Oracle of the FP4 quantization tests: one line of elements at a time, by the definition, in scalar FP32.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "plimsoll/format/codec.h"
#include "plimsoll/format/fp4_block.h"
#include "plimsoll/kernels/quantize_fp4/quantize_fp4.h"
#include "plimsoll/kernels/testing.h"
#include "plimsoll/runtime/philox.h"
#include "plimsoll/runtime/rounding_words.h"

namespace plimsoll::kernels::testing {

using format::E2m1;
using format::Fp4Scaling;
using format::Nvfp4;

inline constexpr Fp4Scaling kScalings[] = {Fp4Scaling::kNvfp4, Fp4Scaling::kFourOverSix, Fp4Scaling::kMsEden,
                                           Fp4Scaling::kMxfp4, Fp4Scaling::kMxfp4Floor};

// A strided matrix, one element past any alignment.
class Matrix {
 public:
  Matrix(Format matrix_format, int64_t row_count, int64_t col_count, bool finite = true)
      : format(matrix_format),
        rows(row_count),
        cols(col_count),
        stride(col_count + 3),
        array_(matrix_format, std::max<int64_t>(row_count * (col_count + 3), 1)) {
    std::mt19937 random(static_cast<uint32_t>(rows * 1009 + cols));
    std::normal_distribution<float> normal;
    constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> special = {0.0f, -0.0f, 0x1p-140f, -0x1p-126f, 1e-9f, -3e4f, 6.0f,
                                        5.0f, 2.5f,  -0.25f,    1.75f,      0.75f, 1e3f,  -17.0f};
    for (int64_t i = 0; i < rows * cols; ++i) {
      // Lines of blocks of very different sizes, zeros among them.
      const float size = i / 64 % 7 == 3 ? 0.0f : std::ldexp(1.0f, static_cast<int>(i / 48 % 13) - 6);
      float value = normal(random) * size;
      if (i % 11 == 5) value = special[random() % special.size()];
      if (!finite && i % 1013 == 700) value = (i & 1) != 0 ? -kInf : kNan;
      set(i / cols, i % cols, value);
    }
  }
  void set(int64_t row, int64_t col, float value) { array_.set(row * stride + col, value); }
  float at(int64_t row, int64_t col) const { return array_.at(row * stride + col); }
  const void* data() const { return array_.data(); }

  const Format format;
  const int64_t rows, cols, stride;

 private:
  Array array_;
};

// The quantization of a matrix, without the memory of codes and scales.
inline QuantizeFp4 quantization_of(const Matrix& x, Fp4Scaling scaling = Fp4Scaling::kNvfp4) {
  return {
      .x = x.data(), .x_format = x.format, .rows = x.rows, .cols = x.cols, .x_stride = x.stride, .scaling = scaling};
}

using Line = std::vector<float>;

inline Line row_of_matrix(const Matrix& x, int64_t row) {
  Line line;
  for (int64_t i = 0; i < x.cols; ++i) line.push_back(x.at(row, i));
  return line;
}
inline Line column_of_matrix(const Matrix& x, int64_t col) {
  Line line;
  for (int64_t i = 0; i < x.rows; ++i) line.push_back(x.at(i, col));
  return line;
}

inline Line rotated(Line line, const Fp4Rotation& rotation) {
  if (rotation.size == 0) return line;
  const auto size = static_cast<size_t>(rotation.size);
  line.resize((line.size() + size - 1) / size * size, 0.0f);
  const auto magnitude = static_cast<float>(1.0 / std::sqrt(static_cast<double>(size)));
  const runtime::Philox words{rotation.seed, rotation.step};
  for (size_t i = 0; i < line.size(); ++i) {
    const size_t place = i % size;
    line[i] *= (words.word(place / 32) >> (place % 32)) % 2 != 0 ? -magnitude : magnitude;
  }
  for (size_t distance = 1; distance < size; distance *= 2) {
    for (size_t i = 0; i < line.size(); ++i) {
      if ((i / distance) % 2 != 0) continue;
      const float a = line[i], b = line[i + distance];
      line[i] = a + b;
      line[i + distance] = a - b;
    }
  }
  return line;
}

// Magnitude as FP32 bits: NaN > Inf > finite.
inline float amax_of(const Line& line, size_t begin = 0, size_t end = SIZE_MAX) {
  uint32_t largest = 0;
  for (size_t i = begin; i < std::min(end, line.size()); ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(line[i]) & 0x7fffffffu);
  }
  return std::bit_cast<float>(largest);
}
inline float larger_amax(float a, float b) {
  return std::bit_cast<float>(std::max(std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b)));
}

// The sum of squares that four over six compares, of 16 elements in the documented order.
inline float pair_errors(const Line& line, size_t begin, float encode_scale, uint8_t scale, float (&pair)[8]) {
  const float factor = Nvfp4::factor(encode_scale, scale), value = format::E4m3::decode(scale);
  const auto error = [&](size_t i) {
    const float x = i < line.size() ? line[i] : 0.0f;
    const float q = std::fabs(E2m1::decode(E2m1::encode(x * factor)));
    const float left = q * value - std::fabs(x * encode_scale);
    return left * left;
  };
  for (size_t i = 0; i < 8; ++i) pair[i] += error(begin + 2 * i) + error(begin + 2 * i + 1);
  return ((pair[0] + pair[1]) + (pair[2] + pair[3])) + ((pair[4] + pair[5]) + (pair[6] + pair[7]));
}

// Magnitude that MS-EDEN takes a block's amax to: 6 / (17 / 16 * 0.93).
inline constexpr float kEdenTarget = static_cast<float>(96.0 / 15.81);

// Scale of the codes of the blocks of some lines, one or the 16 of a square, that begin at `begin`.
inline uint8_t scale_of(const std::vector<Line>& lines, size_t begin, Fp4Scaling scaling, float encode_scale) {
  const auto block = static_cast<size_t>(format::fp4_block(scaling));
  float amax = 0;
  for (const Line& line : lines) amax = larger_amax(amax, amax_of(line, begin, begin + block));
  if (!format::is_nvfp4(scaling)) return format::Mxfp4::block_scale(amax, scaling);
  if (scaling == Fp4Scaling::kMsEden) return Nvfp4::block_scale(amax, encode_scale, kEdenTarget);
  const uint8_t to_6 = Nvfp4::block_scale(amax, encode_scale);
  if (scaling != Fp4Scaling::kFourOverSix || to_6 == Nvfp4::kNan) return to_6;
  const uint8_t to_4 = Nvfp4::block_scale(amax, encode_scale, 4.0f);
  float pairs_6[8] = {}, pairs_4[8] = {}, error_6 = 0, error_4 = 0;
  for (const Line& line : lines) {
    error_6 = pair_errors(line, begin, encode_scale, to_6, pairs_6);
    error_4 = pair_errors(line, begin, encode_scale, to_4, pairs_4);
  }
  return error_4 < error_6 ? to_4 : to_6;
}

inline uint8_t code_of(float x, uint8_t scale, Fp4Scaling scaling, float encode_scale, const uint16_t* random) {
  const bool nvfp4 = format::is_nvfp4(scaling);
  if (scale == (nvfp4 ? Nvfp4::kNan : format::E8m0::kNan)) return 0;
  const float scaled = x * (nvfp4 ? Nvfp4::factor(encode_scale, scale) : format::E8m0::decode_inverse(scale));
  return random == nullptr ? E2m1::encode(scaled) : E2m1::encode_stochastic_16(scaled, *random);
}

inline float tree_of_eight(const float (&x)[8]) {
  return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

// Correction of the MS-EDEN scales of 128 elements from `group` on: sums of the eight blocks, in the documented order.
inline float eden_correction_of(const Line& line, size_t group, float encode_scale) {
  float squares[8], products[8];
  for (size_t block = 0; block < 8; ++block) {
    const size_t begin = group + 16 * block;
    const uint8_t scale = scale_of({line}, begin, Fp4Scaling::kMsEden, encode_scale);
    float square_pairs[8], product_pairs[8];
    for (size_t i = 0; i < 8; ++i) {
      float square[2], product[2];
      for (size_t j = 0; j < 2; ++j) {
        const size_t place = begin + 2 * i + j;
        const float x = place < line.size() ? line[place] : 0.0f, y = std::fabs(x * encode_scale);
        const float q = std::fabs(E2m1::decode(E2m1::encode(x * Nvfp4::factor(encode_scale, scale))));
        square[j] = y * y;
        product[j] = y * (q * format::E4m3::decode(scale));
      }
      square_pairs[i] = square[0] + square[1];
      product_pairs[i] = product[0] + product[1];
    }
    squares[block] = tree_of_eight(square_pairs);
    products[block] = tree_of_eight(product_pairs);
  }
  const float dividend = tree_of_eight(squares), divisor = tree_of_eight(products);
  return std::isfinite(divisor) && divisor > 0 ? dividend / divisor : 1.0f;
}

// Scale that is stored for a block of a line; MS-EDEN: `random` rounds it, nullptr: to nearest.
inline uint8_t stored_scale_of(const Line& line, size_t begin, Fp4Scaling scaling, float encode_scale,
                               const uint16_t* random) {
  const uint8_t scale = scale_of({line}, begin, scaling, encode_scale);
  if (scaling != Fp4Scaling::kMsEden || scale == Nvfp4::kNan) return scale;
  const float corrected = format::E4m3::decode(scale) * eden_correction_of(line, begin / 128 * 128, encode_scale);
  return random == nullptr ? format::E4m3::encode(corrected) : format::E4m3::encode_stochastic_16(corrected, *random);
}

inline std::string name_of(Format format, int64_t rows, int64_t cols, Fp4Scaling scaling, runtime::Isa isa) {
  return std::string(format::info(format).name) + " " + std::to_string(rows) + " x " + std::to_string(cols) +
         " scaling " + std::to_string(static_cast<int>(scaling)) + " on " + std::string(runtime::name(isa));
}

}  // namespace plimsoll::kernels::testing
