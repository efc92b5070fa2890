// MS-EDEN as a distribution over draws: it is unbiased and loses less than stochastic elements. And its borders.
#include <gtest/gtest.h>

#include <array>
#include <set>

#include "plimsoll/kernels/quantize_fp4/quantize_fp4.h"
#include "plimsoll/kernels/quantize_fp4/quantize_fp4_oracle.h"

namespace plimsoll::kernels::quantize_fp4_eden_test {
namespace {

using format::Format;
using testing::E2m1;
using testing::Fp4Scaling;
using testing::Line;
using testing::Matrix;

constexpr int64_t kGroup = 128;

// Codes of the rows of a matrix.
struct Rows {
  std::vector<uint8_t> codes, scale;
  float tensor_scale = 0;
  int64_t places = 0;

  uint8_t code(int64_t row, int64_t i) const {
    const uint8_t byte = codes[static_cast<size_t>((row * places + i) / 2)];
    return i % 2 == 0 ? E2m1::even_of(byte) : E2m1::odd_of(byte);
  }
  uint8_t scale_code(int64_t row, int64_t block) const { return scale[static_cast<size_t>(row * places / 16 + block)]; }
  // In units of the tensor scale.
  double value(int64_t row, int64_t i) const {
    return double{E2m1::decode(code(row, i))} * double{format::E4m3::decode(scale_code(row, i / 16))};
  }
};

Rows quantized(const Matrix& x, Fp4Scaling scaling, const Fp4Rotation& rotation, const Fp4Noise& noise,
               int64_t* non_finite = nullptr) {
  Rows rows;
  rows.places = (x.cols + kGroup - 1) / kGroup * kGroup;
  rows.codes.resize(static_cast<size_t>(x.rows * rows.places / 2));
  rows.scale.resize(static_cast<size_t>(x.rows * rows.places / 16));
  QuantizeFp4 args = testing::quantization_of(x, scaling);
  args.by_row = {.codes = rows.codes.data(),
                 .codes_stride = rows.places / 2,
                 .scale = rows.scale.data(),
                 .scale_stride = rows.places / 16,
                 .rotation = rotation,
                 .noise = noise,
                 .tensor_scale = &rows.tensor_scale};
  args.non_finite_blocks = non_finite;
  quantize_fp4(args);
  return rows;
}

Matrix normal_matrix(int64_t rows, int64_t cols, uint32_t seed) {
  Matrix x(Format::kFp32, rows, cols);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < rows * cols; ++i) x.set(i / cols, i % cols, normal(random));
  return x;
}

// Values of a group, rotated back: the transform is its own inverse, and signs come after it.
std::array<double, kGroup> rotated_back(const Rows& rows, int64_t row, const Fp4Rotation& rotation) {
  std::array<double, kGroup> x;
  for (int64_t i = 0; i < kGroup; ++i) x[static_cast<size_t>(i)] = rows.value(row, i) * double{rows.tensor_scale};
  for (size_t distance = 1; distance < kGroup; distance *= 2) {
    for (size_t i = 0; i < kGroup; ++i) {
      if ((i & distance) != 0) continue;
      const double a = x[i], b = x[i + distance];
      x[i] = a + b;
      x[i + distance] = a - b;
    }
  }
  const runtime::Philox words{rotation.seed, rotation.step};
  for (size_t i = 0; i < kGroup; ++i) {
    x[i] *= ((words.word(i / 32) >> (i % 32)) % 2 != 0 ? -1 : 1) / std::sqrt(double{kGroup});
  }
  return x;
}

// Sums over draws, from which a mean and its deviation follow.
struct Draws {
  std::array<double, kGroup> sum = {}, squares = {};
  double count = 0;
  void add(const std::array<double, kGroup>& x) {
    for (size_t i = 0; i < kGroup; ++i) {
      sum[i] += x[i];
      squares[i] += x[i] * x[i];
    }
    ++count;
  }
  double mean(size_t i) const { return sum[i] / count; }
  double deviation_of_mean(size_t i) const {
    return std::sqrt(std::max(squares[i] / count - mean(i) * mean(i), 0.0) / count);
  }
};

TEST(QuantizeFp4Eden, MeanOverRotationsAndRoundingsIsTheValue) {
  constexpr uint64_t kDraws = 100000;
  const Matrix x = normal_matrix(1, kGroup, 1);
  Draws draws;
  for (uint64_t step = 0; step < kDraws; ++step) {
    const Fp4Rotation rotation = {.size = kGroup, .seed = 11, .step = step};
    const Rows rows = quantized(x, Fp4Scaling::kMsEden, rotation, {.stochastic = true, .seed = 12, .step = step});
    draws.add(rotated_back(rows, 0, rotation));
  }
  for (int64_t i = 0; i < kGroup; ++i) {
    const auto place = static_cast<size_t>(i);
    EXPECT_GT(draws.deviation_of_mean(place), 0);
    EXPECT_NEAR(draws.mean(place), double{x.at(0, i)}, 5 * draws.deviation_of_mean(place)) << i;
  }
}

// Draws of one rotation differ in the rounding of eight scales; their mean has the length that c gives.
TEST(QuantizeFp4Eden, MeanOverRoundingsHasTheSquareOfXAsItsProductWithX) {
  constexpr uint64_t kDraws = 20000;
  const Matrix x = normal_matrix(1, kGroup, 2);
  const Fp4Rotation rotation = {.size = kGroup, .seed = 21, .step = 0};
  const Line line = testing::rotated(row_of_matrix(x, 0), rotation);
  double squares = 0, sum = 0, sum_of_squares = 0;
  for (const float value : line) squares += double{value} * value;
  std::set<uint8_t> scales;
  for (uint64_t step = 0; step < kDraws; ++step) {
    const Rows rows = quantized(x, Fp4Scaling::kMsEden, rotation, {.stochastic = true, .seed = 22, .step = step});
    double product = 0;
    for (int64_t i = 0; i < kGroup; ++i) {
      product += rows.value(0, i) * double{rows.tensor_scale} * double{line[static_cast<size_t>(i)]};
    }
    sum += product;
    sum_of_squares += product * product;
    scales.insert(rows.scale_code(0, 0));
  }
  EXPECT_EQ(scales.size(), 2);
  const double mean = sum / kDraws, deviation = std::sqrt((sum_of_squares / kDraws - mean * mean) / kDraws);
  // FP32: sums of positive terms of ten roundings each, the quotient and its product; 16 bits: half a unit of 2^-16 of
  // at most an eighth of a scale.
  EXPECT_NEAR(mean, squares, 5 * deviation + squares * (2 * 10 * 0x1p-24 + 0x1p-17 / 8));
  EXPECT_LT(5 * deviation, 1e-3 * squares);
}

double relative_error(const Matrix& x, const Rows& rows, const Fp4Rotation& rotation) {
  double error = 0, squares = 0;
  for (int64_t row = 0; row < x.rows; ++row) {
    const Line line = testing::rotated(row_of_matrix(x, row), rotation);
    for (int64_t i = 0; i < x.cols; ++i) {
      const double value{line[static_cast<size_t>(i)]}, left = rows.value(row, i) * double{rows.tensor_scale} - value;
      error += left * left;
      squares += value * value;
    }
  }
  return error / squares;
}

// Rounding to nearest loses a twelfth of the square of the codes' distance, where they are evenly spaced, stochastic
// rounding a sixth. A scale is rounded by an eighth of itself at the most: a sixth of the square of that is 0.0026.
TEST(QuantizeFp4Eden, LosesLessThanStochasticElements) {
  const Matrix x = normal_matrix(64, 1024, 3);
  const Fp4Rotation rotation = {.size = kGroup, .seed = 31, .step = 0};
  const Fp4Noise noise = {.stochastic = true, .seed = 32, .step = 0};
  const double eden = relative_error(x, quantized(x, Fp4Scaling::kMsEden, rotation, noise), rotation);
  const double elements = relative_error(x, quantized(x, Fp4Scaling::kNvfp4, rotation, noise), rotation);
  const double nearest = relative_error(x, quantized(x, Fp4Scaling::kNvfp4, rotation, {}), rotation);
  RecordProperty("share_of_stochastic_elements", std::to_string(eden / elements));
  EXPECT_LT(eden, elements);
  EXPECT_GT(eden, nearest);
  EXPECT_LT(eden, nearest + 1.0 / (6 * 8 * 8));
}

TEST(QuantizeFp4Eden, EveryCodeComesAndNoScaleSaturates) {
  // Elements just below the middle of two codes: those of 2.5, of 5 and of 0.75 lose most, so c is largest.
  Matrix x = normal_matrix(96, 512, 4);
  for (int64_t row = 0; row < 96; ++row) {
    for (int64_t i = 0; i < 512 && row % 4 != 3; ++i) {
      const float value = row % 4 == 0 ? 2.499f : row % 4 == 1 ? 4.999f : 0.7499f;
      x.set(row, i, (i % 16 == 0 ? 6.0723f : value) * (i % 3 == 0 ? -1.0f : 1.0f));
    }
  }
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    std::set<uint8_t> codes;
    float largest = 0;
    for (const int64_t rotation : {int64_t{0}, kGroup}) {
      const Rows rows = quantized(x, Fp4Scaling::kMsEden, {.size = rotation, .seed = 41},
                                  {.stochastic = true, .seed = 42, .step = 1});
      for (int64_t row = 0; row < x.rows; ++row) {
        for (int64_t i = 0; i < x.cols; ++i) codes.insert(rows.code(row, i));
        for (int64_t i = 0; i < x.cols / 16; ++i) {
          largest = std::max(largest, format::E4m3::decode(rows.scale_code(row, i)));
        }
      }
    }
    EXPECT_EQ(codes.size(), 16);
    EXPECT_GT(largest, 256);  // a correction
    EXPECT_LE(largest, 320);  // 1.25 times 256
  }
}

TEST(QuantizeFp4Eden, ZerosStayZerosAndTinyGroupsVanishWithoutNan) {
  Matrix x = normal_matrix(4, 2 * kGroup, 5);
  for (int64_t i = 0; i < kGroup; ++i) {
    x.set(0, i, 0.0f);
    x.set(1, i, 0x1p-60f);  // below the smallest scale: the codes are zeros
  }
  int64_t non_finite = -1;
  const Rows rows =
      quantized(x, Fp4Scaling::kMsEden, {.size = kGroup, .seed = 51}, {.stochastic = true, .seed = 52}, &non_finite);
  EXPECT_EQ(non_finite, 0);
  for (const int64_t row : {0, 1}) {
    for (int64_t i = 0; i < kGroup; ++i) EXPECT_EQ(rows.value(row, i), 0.0);
    for (int64_t i = kGroup; i < 2 * kGroup; i += 16) EXPECT_GT(rows.scale_code(row, i / 16), 0);
  }
}

TEST(QuantizeFp4Eden, ABadValueMakesItsGroupNanAndIsCounted) {
  Matrix x = normal_matrix(2, 2 * kGroup, 6);
  x.set(1, 5, std::numeric_limits<float>::infinity());
  const float amax = 8;
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    Rows rows;
    rows.places = x.cols;
    rows.codes.resize(static_cast<size_t>(x.rows * x.cols / 2));
    rows.scale.resize(static_cast<size_t>(x.rows * x.cols / 16));
    int64_t non_finite = -1;
    quantize_fp4({.x = x.data(),
                  .rows = x.rows,
                  .cols = x.cols,
                  .x_stride = x.stride,
                  .scaling = Fp4Scaling::kMsEden,
                  .by_row = {.codes = rows.codes.data(),
                             .codes_stride = x.cols / 2,
                             .scale = rows.scale.data(),
                             .scale_stride = x.cols / 16,
                             .rotation = {.size = kGroup, .seed = 61},
                             .noise = {.stochastic = true, .seed = 62},
                             .tensor_amax = &amax},
                  .non_finite_blocks = &non_finite});
    EXPECT_EQ(non_finite, kGroup / 16);
    for (int64_t row = 0; row < 2; ++row) {
      for (int64_t block = 0; block < 2 * kGroup / 16; ++block) {
        EXPECT_EQ(rows.scale_code(row, block) == format::Nvfp4::kNan, row == 1 && block < kGroup / 16);
      }
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels::quantize_fp4_eden_test
