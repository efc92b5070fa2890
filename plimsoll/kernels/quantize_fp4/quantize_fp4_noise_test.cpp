// Distribution of stochastic codes: unbiased, and different for every seed, step and element.
#include <gtest/gtest.h>

#include "plimsoll/kernels/quantize_fp4/quantize_fp4.h"
#include "plimsoll/kernels/quantize_fp4/quantize_fp4_oracle.h"

namespace plimsoll::kernels {
namespace {

using format::E2m1;
using format::Format;
using testing::Matrix;

std::vector<uint8_t> codes_of(const Matrix& x, Fp4Noise noise, float amax, float& tensor_scale,
                              std::vector<uint8_t>& scale) {
  std::vector<uint8_t> codes(static_cast<size_t>(x.rows * ((x.cols + 1) / 2)));
  scale.resize(static_cast<size_t>(x.rows * ((x.cols + 15) / 16)));
  QuantizeFp4 args = testing::quantization_of(x);
  args.by_row = {.codes = codes.data(),
                 .codes_stride = (x.cols + 1) / 2,
                 .scale = scale.data(),
                 .scale_stride = (x.cols + 15) / 16,
                 .noise = noise,
                 .tensor_amax = &amax,
                 .tensor_scale = &tensor_scale};
  quantize_fp4(args);
  return codes;
}

TEST(QuantizeFp4Noise, MeanOverStepsIsTheValue) {
  // One row of many different values; 10^5 draws of each.
  constexpr int kDraws = 100000, kCols = 64;
  Matrix x(Format::kFp32, 1, kCols);
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  for (int64_t i = 0; i < kCols; ++i) x.set(0, i, i % 16 == 0 ? 1.0f : uniform(random));
  std::vector<double> sum(kCols, 0.0), squares(kCols, 0.0);
  std::vector<uint8_t> scale;
  float tensor_scale = 0;
  for (int step = 0; step < kDraws; ++step) {
    const Fp4Noise noise = {.stochastic = true, .seed = 42, .step = static_cast<uint64_t>(step)};
    const std::vector<uint8_t> codes = codes_of(x, noise, 1.0f, tensor_scale, scale);
    for (size_t i = 0; i < kCols; ++i) {
      const uint8_t code = i % 2 == 0 ? E2m1::even_of(codes[i / 2]) : E2m1::odd_of(codes[i / 2]);
      const double value = double{E2m1::decode(code)} * format::E4m3::decode(scale[i / 16]) * tensor_scale;
      sum[i] += value;
      squares[i] += value * value;
    }
  }
  for (size_t i = 0; i < kCols; ++i) {
    const double mean = sum[i] / kDraws, variance = std::max(squares[i] / kDraws - mean * mean, 0.0);
    // The distance is rounded to 2^-17 of the largest gap, 2, and factors to 2^-24 of 6, on top of the draws' deviation.
    const double value = x.at(0, static_cast<int64_t>(i)), unit = format::E4m3::decode(scale[i / 16]) * tensor_scale;
    const double bias = unit * (2 * 0x1p-17 + 4 * 6 * 0x1p-24);
    EXPECT_NEAR(mean, value, 5 * std::sqrt(variance / kDraws) + bias) << i;
  }
}

TEST(QuantizeFp4Noise, SeedStepAndElementEachChangeTheCodes) {
  Matrix x(Format::kFp32, 2, 512);
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t col = 0; col < 512; ++col) x.set(row, col, col % 16 == 0 ? 6.0f : 2.5f);
  }
  std::vector<uint8_t> scale;
  float tensor_scale = 0;
  const auto codes = [&](uint64_t seed, uint64_t step) {
    return codes_of(x, {.stochastic = true, .seed = seed, .step = step}, 6.0f, tensor_scale, scale);
  };
  const std::vector<uint8_t> first = codes(1, 1), again = codes(1, 1), seed = codes(2, 1), step = codes(1, 2);
  EXPECT_EQ(first, again);
  // 960 elements of 1024 are not representable and lie in the middle; half of these differ.
  const auto differing = [](const uint8_t* a, const uint8_t* b, size_t bytes) {
    int count = 0;
    for (size_t i = 0; i < bytes; ++i) count += (a[i] & 15) != (b[i] & 15) ? 1 : 0;
    for (size_t i = 0; i < bytes; ++i) count += (a[i] >> 4) != (b[i] >> 4) ? 1 : 0;
    return count;
  };
  const double deviation = std::sqrt(960 * 0.25);
  EXPECT_NEAR(differing(first.data(), seed.data(), 512), 480, 5 * deviation);
  EXPECT_NEAR(differing(first.data(), step.data(), 512), 480, 5 * deviation);
  EXPECT_NEAR(differing(first.data(), first.data() + 256, 256), 240, 5 * deviation);  // rows of equal values
}

}  // namespace
}  // namespace plimsoll::kernels
