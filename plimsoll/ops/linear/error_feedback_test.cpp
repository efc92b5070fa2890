// Error feedback against its definition in FP64; python/tests/calibrated_codes_test.py has codes against another form of GPTQ.
#include "plimsoll/ops/linear/error_feedback.h"

#include <ATen/ops/eye.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cfloat>
#include <limits>

#include "plimsoll/ops/linear/decode_codes.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::ops {
namespace {

using format::E2m1;
using format::Fp4Scaling;

constexpr Fp4Scaling kBothScalings[] = {Fp4Scaling::kNvfp4, Fp4Scaling::kMxfp4};

// Channels that have much in common.
at::Tensor inputs(int64_t tokens, int64_t channels) {
  return at::matmul(at::randn({tokens, 3}), at::randn({3, channels})) + 0.3 * at::randn({tokens, channels});
}

uint8_t code_at(const Fp4Codes& made, int64_t row, int64_t col) {
  const uint8_t pair = made.codes.select(0, row).const_data_ptr<uint8_t>()[col / 2];
  return col % 2 == 0 ? E2m1::even_of(pair) : E2m1::odd_of(pair);
}

TEST(ErrorFeedback, SquaresAreThoseOfInputsForAnyNumberOfThreads) {
  at::manual_seed(1);
  const int before = runtime::threads();
  for (const int64_t tokens : {1, 7, 130}) {
    const at::Tensor x = inputs(tokens, 48), exact = x.to(at::kDouble);
    runtime::set_threads(1);
    const at::Tensor squares = input_squares(x.unsqueeze(0));
    const at::Tensor magnitude = at::matmul(exact.abs().t(), exact.abs());
    const double bound = static_cast<double>(tokens + 1) * 0x1p-24 * 1.01;  // of sums of rounded products
    EXPECT_TRUE(((squares - at::matmul(exact.t(), exact)).abs() <= bound * magnitude).all().item<bool>());
    for (const int threads : {2, 3}) {
      runtime::set_threads(threads);
      EXPECT_TRUE(input_squares(x).equal(squares));
      EXPECT_TRUE(error_feedback(squares).equal(error_feedback(input_squares(x))));
    }
  }
  runtime::set_threads(before);
}

TEST(ErrorFeedback, FactorIsThatOfTheDampedInverse) {
  at::manual_seed(2);
  for (const int64_t channels : {1, 16, 96}) {
    const at::Tensor squares = input_squares(inputs(40, channels)), factor = error_feedback(squares);
    const at::Tensor identity = at::eye(channels, at::kDouble);
    const at::Tensor damped = squares + 0.01 * squares.diagonal().mean() * identity;
    EXPECT_TRUE(factor.equal(factor.triu()));
    EXPECT_TRUE((factor.diagonal() > 0).all().item<bool>());
    // The condition is at most trace / damping = 100 channels; three products and a factorisation, each of `channels` terms.
    const double n = static_cast<double>(channels), bound = 100 * n * 4 * n * DBL_EPSILON;
    const at::Tensor product = at::matmul(at::matmul(factor.t(), factor), damped);
    EXPECT_LE((product - identity).norm().item<double>(), bound * n) << channels;
  }
}

TEST(ErrorFeedback, InputsOfZerosGiveNone) {
  EXPECT_TRUE(error_feedback(at::zeros({5, 5}, at::kDouble)).equal(at::eye(5, at::kDouble)));
}

TEST(ErrorFeedback, WhatIsNoSquareIsAnError) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(error_feedback(at::eye(4, at::kDouble) * nan), c10::Error);
  const at::Tensor indefinite = at::eye(4, at::kDouble);
  indefinite[0][3] = indefinite[3][0] = 2;
  EXPECT_THROW(error_feedback(indefinite), c10::Error);
  EXPECT_THROW(error_feedback(at::zeros({4, 5}, at::kDouble)), c10::Error);
  EXPECT_THROW(error_feedback(at::eye(4)), c10::Error);
  const at::Tensor weight = at::randn({2, 32});
  const at::Tensor identity = at::eye(32, at::kDouble);
  EXPECT_THROW(fp4_codes_with_feedback({.weight = weight.narrow(1, 0, 8)}, Fp4Scaling::kNvfp4, 1, identity),
               c10::Error);
  EXPECT_THROW(fp4_codes_with_feedback({.weight = weight}, Fp4Scaling::kNvfp4, 1, at::eye(16, at::kDouble)),
               c10::Error);
  EXPECT_THROW(fp8_codes_with_feedback({.weight = weight}, recipe::kPerRow, at::eye(16, at::kDouble)), c10::Error);
  EXPECT_THROW(fp8_codes_with_feedback({.weight = weight}, recipe::kPerRow, at::eye(32)), c10::Error);
}

TEST(ErrorFeedback, ADiagonalLeavesTheNearestCodes) {
  at::manual_seed(3);
  for (const Fp4Scaling scaling : kBothScalings) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t rows : {0, 1, 17, 40}) {
        const at::Tensor weight = at::randn({rows, 96});
        if (rows > 1) {
          weight[1].zero_();
          weight[0].mul_(0x1p-6);
          weight.select(1, 40).zero_();
          weight.select(1, 41).mul_(100);
          weight.narrow(1, 64, 32).mul_(0x1p-4);  // no more, which would be a zero with a sign in FP16
        }
        const at::Tensor stored = weight.to(dtype);
        const float amax = rows == 0 ? 0.0f : stored.abs().max().item<float>();
        const at::Tensor diagonal = at::eye(96, at::kDouble) * 0.37;
        const Fp4Codes made = fp4_codes_with_feedback({.weight = stored}, scaling, amax, diagonal);
        const Fp4Codes nearest = fp4_codes_of({{.weight = stored}}, scaling, amax);
        EXPECT_TRUE(made.codes.equal(nearest.codes) && made.scale.equal(nearest.scale)) << rows;
        EXPECT_EQ(made.cols, nearest.cols);
        EXPECT_EQ(made.tensor_scale.defined(), nearest.tensor_scale.defined());
        EXPECT_TRUE(rows == 0 || !made.tensor_scale.defined() || made.tensor_scale.equal(nearest.tensor_scale));
      }
    }
  }
}

TEST(ErrorFeedback, LaterColumnsAndTheirScalesTakeWhatAColumnLost) {
  const at::Tensor weight = at::zeros({1, 64}), feedback = at::eye(64, at::kDouble);
  weight[0][0] = 2.4;  // becomes 2
  weight[0][1] = 1.1;
  weight[0][31] = 6;
  weight[0][32] = 1.1;
  weight[0][63] = 6;
  feedback[0][0] = 0.5;  // what is lost counts twice
  feedback[0][1] = feedback[0][32] = -0.5;
  const auto code = [](float value) { return E2m1::encode(value); };
  Fp4Codes made = fp4_codes_with_feedback({.weight = weight}, Fp4Scaling::kMxfp4, 6, feedback);
  EXPECT_EQ(code_at(made, 0, 0), code(2));
  EXPECT_EQ(code_at(made, 0, 1), code(1.5));
  EXPECT_EQ(code_at(made, 0, 32), code(1.5));
  EXPECT_EQ(made.scale[0][1].item<int>(), 127);
  feedback[0][63] = -0.5;  // 6.4 needs the next power of two
  made = fp4_codes_with_feedback({.weight = weight}, Fp4Scaling::kMxfp4, 6, feedback);
  EXPECT_EQ(made.scale[0][0].item<int>(), 127);
  EXPECT_EQ(made.scale[0][1].item<int>(), 128);
  EXPECT_EQ(code_at(made, 0, 63), code(3));
  EXPECT_EQ(code_at(made, 0, 32), code(1));  // 1.5 / 2, to even
}

TEST(ErrorFeedback, OutputsErrLessThanWithNearestCodes) {
  at::manual_seed(4);
  const at::Tensor x = inputs(200, 96), weight = at::randn({48, 96});
  const float amax = weight.abs().max().item<float>();
  for (const Fp4Scaling scaling : kBothScalings) {
    const auto kind = format::is_nvfp4(scaling) ? CodeKind::kNvfp4 : CodeKind::kMxfp4;
    const auto error = [&](const Fp4Codes& made) {
      const float tensor_scale = made.tensor_scale.defined() ? made.tensor_scale.item<float>() : 1.0f;
      const StoredCodes stored = {.codes = made.codes, .scale = made.scale, .tensor_scale = tensor_scale};
      const at::Tensor lost = weight - decode_codes({{.stored = stored}}, kind, at::kFloat);
      return at::matmul(x, lost.t()).norm().item<double>();
    };
    const at::Tensor feedback = error_feedback(input_squares(x));
    EXPECT_LT(error(fp4_codes_with_feedback({.weight = weight}, scaling, amax, feedback)),
              0.8 * error(fp4_codes_of({{.weight = weight}}, scaling, amax)));
  }
}

}  // namespace
}  // namespace plimsoll::ops
