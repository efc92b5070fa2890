// E4M3 codes with error feedback against the definition, whose rounding is torch's; error_feedback_test.cpp has the feedback.
#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <vector>

#include "plimsoll/format/fp8.h"
#include "plimsoll/ops/linear/error_feedback.h"
#include "plimsoll/ops/tensor/quantize.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::ops {
namespace {

constexpr recipe::Granularity kBothGranularities[] = {recipe::kPerRow, recipe::kBlock128x128};

// Channels that have much in common.
at::Tensor related_inputs(int64_t tokens, int64_t channels) {
  return at::matmul(at::randn({tokens, 3}), at::randn({3, channels})) + 0.3 * at::randn({tokens, channels});
}

at::Tensor codes_by_torch(const at::Tensor& scaled) {
  return scaled.clamp(-448, 448).to(at::kFloat8_e4m3fn).view(at::kByte);  // torch makes NaN of what is larger
}

// Columns one after another, each of which takes what it loses from all that follow, in FP64: no blocks and no order of its own.
ScaledTensor codes_by_definition(const at::Tensor& weight, recipe::Granularity granularity,
                                 const at::Tensor& feedback) {
  const int64_t rows = weight.size(0), cols = weight.size(1);
  const int64_t height = granularity.block_rows, width = granularity.block_cols == 0 ? cols : granularity.block_cols;
  const at::Tensor left = weight.to(at::kDouble).clone();
  std::vector<at::Tensor> codes, scales;
  at::Tensor scale;  // of each row, in the block at hand
  for (int64_t col = 0; col < cols; ++col) {
    if (col % width == 0) {
      std::vector<at::Tensor> of_rows;
      const at::Tensor block = left.narrow(1, col, std::min(width, cols - col)).to(at::kFloat);
      for (int64_t row = 0; row < rows; row += height) {
        const int64_t count = std::min(height, rows - row);
        const float amax = block.narrow(0, row, count).abs().max().item<float>();
        of_rows.push_back(at::full({count}, std::max(amax / 448.0f, FLT_MIN), at::kFloat));
      }
      scale = at::cat(of_rows);
      scales.push_back(scale.slice(0, 0, rows, height));
    }
    const at::Tensor code = codes_by_torch(left.select(1, col).to(at::kFloat) * scale.reciprocal());
    const at::Tensor value = code.view(at::kFloat8_e4m3fn).to(at::kFloat) * scale;
    left.sub_(at::outer((left.select(1, col) - value) / feedback[col][col], feedback[col]));
    codes.push_back(code);
  }
  return {.data = at::stack(codes, 1), .scale = at::stack(scales, 1)};
}

at::Tensor without_sign_of_zero(const at::Tensor& codes) { return codes.masked_fill(codes.eq(0x80), 0); }

TEST(ErrorFeedbackFp8, CodesAreThoseOfTheDefinition) {
  at::manual_seed(1);
  constexpr recipe::Granularity kOdd = {3, 30};  // columns that are not whole fours
  for (const recipe::Granularity granularity : {recipe::kPerRow, recipe::kBlock128x128, kOdd}) {
    for (const int64_t rows : {1, 17, 150}) {
      for (const int64_t cols : {1, 33, 128, 290}) {
        const at::Tensor weight = at::randn({rows, cols});
        weight[0].mul_(0x1p-10);
        weight.select(1, cols / 2).mul_(30);
        if (rows > 1) weight[1].zero_();
        const at::Tensor feedback = error_feedback(input_squares(related_inputs(300, cols)));
        const ScaledTensor made = fp8_codes_with_feedback({.weight = weight}, granularity, feedback);
        const ScaledTensor expected = codes_by_definition(weight, granularity, feedback);
        EXPECT_TRUE(without_sign_of_zero(made.data).equal(without_sign_of_zero(expected.data))) << rows << " " << cols;
        EXPECT_TRUE(made.scale.equal(expected.scale)) << rows << " " << cols;
        EXPECT_EQ(made.format, format::Format::kE4m3);
        EXPECT_EQ(made.granularity, granularity);
      }
    }
  }
}

TEST(ErrorFeedbackFp8, ADiagonalLeavesTheNearestCodes) {
  at::manual_seed(2);
  for (const recipe::Granularity granularity : kBothGranularities) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t rows : {0, 1, 129}) {
        for (const int64_t cols : {0, 1, 200}) {
          const at::Tensor weight = at::randn({rows, cols}).to(dtype), before = weight.clone();
          const at::Tensor diagonal = at::eye(cols, at::kDouble) * 0.37;
          const ScaledTensor made = fp8_codes_with_feedback({.weight = weight}, granularity, diagonal);
          const ScaledTensor nearest = quantize(weight, {.granularity = granularity}).tensor;
          EXPECT_TRUE(without_sign_of_zero(made.data).equal(without_sign_of_zero(nearest.data))) << rows << " " << cols;
          EXPECT_TRUE(made.scale.equal(nearest.scale)) << rows << " " << cols;
          EXPECT_TRUE(weight.equal(before));
        }
      }
    }
  }
}

TEST(ErrorFeedbackFp8, BlocksTakeTheirScaleWhenTheyAreReachedAndRowsBeforeAnyIsRounded) {
  const at::Tensor weight = at::zeros({1, 256}), feedback = at::eye(256, at::kDouble);
  weight[0][0] = 448;
  weight[0][1] = 17;  // becomes 16
  weight[0][255] = 224;
  feedback[1][255] = -224;
  const auto code = [](const ScaledTensor& made, int64_t col) { return made.data[0][col].item<int>(); };
  const ScaledTensor rows = fp8_codes_with_feedback({.weight = weight}, recipe::kPerRow, feedback);
  EXPECT_EQ(rows.scale.item<float>(), 1);
  EXPECT_EQ(code(rows, 255), format::E4m3::encode(448));
  feedback[1][255] = -448;
  const ScaledTensor saturated = fp8_codes_with_feedback({.weight = weight}, recipe::kPerRow, feedback);
  EXPECT_EQ(saturated.scale.item<float>(), 1);
  EXPECT_EQ(code(saturated, 255), format::E4m3::encode(448));  // of 672
  const ScaledTensor blocks = fp8_codes_with_feedback({.weight = weight}, recipe::kBlock128x128, feedback);
  EXPECT_EQ(blocks.scale[0][0].item<float>(), 1);
  EXPECT_EQ(blocks.scale[0][1].item<float>(), 1.5);
  EXPECT_EQ(code(blocks, 255), format::E4m3::encode(448));
}

TEST(ErrorFeedbackFp8, ValuesThatOutgrowFp32Saturate) {
  const at::Tensor weight = at::zeros({1, 256}), feedback = at::eye(256, at::kDouble);
  weight[0][0] = FLT_MAX;
  weight[0][1] = 0.3 * FLT_MAX;
  weight[0][200] = 1;
  feedback[1][200] = -1000;
  for (const recipe::Granularity granularity : kBothGranularities) {
    const ScaledTensor made = fp8_codes_with_feedback({.weight = weight}, granularity, feedback);
    const at::Tensor values = dequantize(made, at::kFloat);
    EXPECT_TRUE(values.isfinite().all().item<bool>());
    EXPECT_EQ(std::fabs(values[0][200].item<float>()), FLT_MAX);
  }
}

TEST(ErrorFeedbackFp8, BitsDoNotDependOnTheNumberOfThreads) {
  at::manual_seed(3);
  const at::Tensor weight = at::randn({300, 200});
  const at::Tensor feedback = error_feedback(input_squares(related_inputs(300, 200)));
  const int before = runtime::threads();
  for (const recipe::Granularity granularity : kBothGranularities) {
    runtime::set_threads(1);
    const ScaledTensor one = fp8_codes_with_feedback({.weight = weight}, granularity, feedback);
    for (const int threads : {2, 3, 5}) {
      runtime::set_threads(threads);
      const ScaledTensor made = fp8_codes_with_feedback({.weight = weight}, granularity, feedback);
      EXPECT_TRUE(made.data.equal(one.data) && made.scale.equal(one.scale)) << threads;
    }
  }
  runtime::set_threads(before);
}

TEST(ErrorFeedbackFp8, OutputsErrLessThanWithNearestCodes) {
  at::manual_seed(4);
  const at::Tensor x = related_inputs(300, 200), weight = at::randn({150, 200});
  const at::Tensor feedback = error_feedback(input_squares(x));
  for (const recipe::Granularity granularity : kBothGranularities) {
    const auto error = [&](const ScaledTensor& made) {
      return at::matmul(x, (weight - dequantize(made, at::kFloat)).t()).norm().item<double>();
    };
    EXPECT_LT(error(fp8_codes_with_feedback({.weight = weight}, granularity, feedback)),
              0.8 * error(quantize(weight, {.granularity = granularity}).tensor));
  }
}

}  // namespace
}  // namespace plimsoll::ops
