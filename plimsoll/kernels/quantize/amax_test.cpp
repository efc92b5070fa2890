#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "plimsoll/kernels/quantize/quantize.h"
#include "plimsoll/kernels/quantize/test_matrix.h"
#include "plimsoll/runtime/cpu.h"

namespace plimsoll::kernels {
namespace {

using format::Format;
using testing::Content;
using testing::TestMatrix;

float amax_of(Amax args) {
  float result = -1;
  args.amax = &result;
  amax(args);
  return result;
}

float amax_of_matrix(const TestMatrix& x) {
  return amax_of({.x = x.data(), .x_format = x.format, .rows = x.rows, .cols = x.cols, .x_stride = x.stride});
}

TEST(Amax, IsTheLargestMagnitudeOfEveryShapeAndFormat) {
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (const Format format : testing::kInputFormats) {
      for (const auto& [rows, cols] : testing::kShapes) {
        for (const int64_t padding : {0, 3}) {
          const TestMatrix x(format, rows, cols, padding, Content::kFinite);
          ASSERT_EQ(amax_of_matrix(x), testing::expected_amax(x)) << rows << " x " << cols;
        }
      }
    }
  }
}

TEST(Amax, NanHidesInfAndInfHidesTheRest) {
  for (const runtime::Isa isa : testing::isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (const Format format : testing::kInputFormats) {
      for (const int64_t position : {0, 7, 16, 40, 46}) {
        TestMatrix x(format, 3, 47, 1, Content::kFinite);
        x.set(1, position, -std::numeric_limits<float>::infinity());
        ASSERT_EQ(amax_of_matrix(x), std::numeric_limits<float>::infinity());
        x.set(2, 46 - position, -std::numeric_limits<float>::quiet_NaN());
        ASSERT_TRUE(std::isnan(amax_of_matrix(x)));
        ASSERT_FALSE(std::signbit(amax_of_matrix(x)));
      }
    }
  }
}

TEST(Amax, OfNothingAndOfNegativeZerosIsZero) {
  EXPECT_EQ(std::bit_cast<uint32_t>(amax_of({.rows = 0, .cols = 7})), 0u);
  EXPECT_EQ(std::bit_cast<uint32_t>(amax_of({.rows = 7, .cols = 0})), 0u);
  const float zeros[3] = {-0.0f, -0.0f, -0.0f};
  EXPECT_EQ(std::bit_cast<uint32_t>(amax_of({.x = zeros, .rows = 3, .cols = 1, .x_stride = 1})), 0u);
}

}  // namespace
}  // namespace plimsoll::kernels
