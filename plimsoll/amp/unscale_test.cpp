#include "plimsoll/amp/unscale.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace plimsoll::amp {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kBf16Unit = 0x1p-8;  // half of the distance between numbers next to 1

// fp32, bf16, fp16, fp64; dense in another order, with gaps, empty, a scalar.
std::vector<at::Tensor> gradients() {
  at::manual_seed(1);
  return {at::randn({37, 53}) * 3,
          at::randn({1001}).to(at::kBFloat16),
          at::randn({64}).to(at::kHalf),
          at::randn({5, 7}).to(at::kDouble),
          at::randn({33, 17}).t(),
          at::randn({20, 30}).slice(1, 3, 25),
          at::empty({0, 4}),
          at::randn({})};
}

// x * factor, rounded once to FP32 (fp64 stays) and once to x's format.
at::Tensor scaled(const at::Tensor& x, float factor) {
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return (x.to(at::kDouble) * static_cast<double>(factor)).to(wide).to(x.scalar_type());
}

double norm_of(const std::vector<at::Tensor>& tensors, double factor) {
  double sum = 0;
  for (const at::Tensor& tensor : tensors) sum += (tensor.to(at::kDouble) * factor).square().sum().item<double>();
  return std::sqrt(sum);
}

int64_t elements(const std::vector<at::Tensor>& tensors) {
  int64_t count = 0;
  for (const at::Tensor& tensor : tensors) count += tensor.numel();
  return count;
}

TEST(UnscaleGradients, MultipliesInPlaceAndMeasures) {
  for (const float inv_scale : {1.0f, 0x1p-16f, 0.3f, 8.0f}) {
    const std::vector<at::Tensor> before = gradients(), grads = gradients();
    const UnscaleSummary summary = unscale_gradients_(grads, {.inv_scale = inv_scale});
    for (size_t i = 0; i < grads.size(); ++i) {
      EXPECT_TRUE(at::equal(grads[i], scaled(before[i], inv_scale))) << inv_scale << " tensor " << i;
    }
    // Each product is rounded to FP32 once; squares and sums are in double.
    const double expected = norm_of(before, static_cast<double>(inv_scale));
    EXPECT_NEAR(summary.grad_norm, expected, expected * (0x1p-24 + static_cast<double>(elements(before)) * 0x1p-52));
    EXPECT_EQ(summary.clip_factor, 1);
    EXPECT_EQ(summary.non_finite, 0);
    EXPECT_EQ(summary.first_non_finite, -1);
  }
}

TEST(UnscaleGradients, ClipsToTheNorm) {
  const std::vector<at::Tensor> before = gradients(), grads = gradients();
  const float inv_scale = 0.25f;
  const UnscaleSummary summary = unscale_gradients_(grads, {.inv_scale = inv_scale, .max_norm = 2});
  EXPECT_EQ(summary.clip_factor, 2 / (summary.grad_norm + 1e-6));
  EXPECT_LT(summary.clip_factor, 1);
  const auto factor = static_cast<float>(static_cast<double>(inv_scale) * summary.clip_factor);
  for (size_t i = 0; i < grads.size(); ++i) EXPECT_TRUE(at::equal(grads[i], scaled(before[i], factor))) << i;
  const UnscaleSummary again = unscale_gradients_(grads, {.max_norm = 1e6});
  EXPECT_NEAR(again.grad_norm, 2, 2 * kBf16Unit);  // elements round once, those of bf16 by the most
  EXPECT_EQ(again.clip_factor, 1);
}

TEST(UnscaleGradients, NothingThatIsNotFiniteHides) {
  for (const size_t place : {0u, 1u, 2u, 3u, 4u, 5u, 7u}) {
    for (const float value : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
      const std::vector<at::Tensor> grads = gradients();
      at::Tensor target = grads[place];
      while (target.dim() > 0) target = target.select(0, target.size(0) - 1);
      target.fill_(value);
      const UnscaleSummary summary = unscale_gradients_(grads, {.inv_scale = 0x1p-16f, .max_norm = 1});
      EXPECT_EQ(summary.non_finite, 1) << place;
      EXPECT_EQ(summary.first_non_finite, static_cast<int64_t>(place));
      EXPECT_FALSE(std::isfinite(summary.grad_norm));
      EXPECT_EQ(summary.clip_factor, 1);
    }
  }
}

TEST(UnscaleGradients, TakesTheValuesOfASparseOne) {
  const at::Tensor indices = at::tensor({1, 4}, at::kLong).unsqueeze(0);
  const at::Tensor values = at::tensor({2.0f, -6.0f});
  const at::Tensor sparse = at::sparse_coo_tensor(indices, values, {6}).coalesce();
  const UnscaleSummary summary = unscale_gradients_({sparse}, {.inv_scale = 0.5f});
  EXPECT_TRUE(at::equal(sparse.to_dense(), at::tensor({0.0f, 1.0f, 0.0f, 0.0f, -3.0f, 0.0f})));
  EXPECT_EQ(summary.grad_norm, std::sqrt(10.0));
}

// Sums with the scale on them would be Inf; without it they are 4, 3e38 and, of what travels in BF16, 2^-7.
TEST(UnscaleGradients, SumsTheEntriesOfASparseOneWithoutTheScale) {
  const float inf = std::numeric_limits<float>::infinity(), large = 0x1p127f;
  const at::Tensor indices = at::tensor({3, 1, 3}, at::kLong).unsqueeze(0);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const bool expect_clip : {false, true}) {
      const at::Tensor values = at::tensor({large, -large, large}).to(dtype);
      const at::Tensor sparse = at::sparse_coo_tensor(indices, values, {6});
      const UnscaleSummary summary = unscale_gradients_(
          {sparse, at::ones(1)}, {.inv_scale = 0x1p-126f, .max_norm = 1e6, .expect_clip = expect_clip});
      EXPECT_EQ(summary.non_finite, 0) << dtype;
      EXPECT_DOUBLE_EQ(summary.grad_norm, std::sqrt(16.0 + 4.0)) << dtype;
      EXPECT_FALSE(sparse.is_coalesced()) << "each entry stays for the optimizer, as torch leaves it";
      EXPECT_TRUE(at::equal(sparse._values(), at::tensor({2.0f, -2.0f, 2.0f}).to(dtype))) << dtype;
    }
    // Sums beyond FP32 have a norm, too, and are clipped.
    const at::Tensor beyond = at::sparse_coo_tensor(indices, at::tensor({large, -large, large}).to(dtype), {6});
    const UnscaleSummary clipped = unscale_gradients_({beyond}, {.max_norm = 1});
    EXPECT_EQ(clipped.non_finite, 0);
    EXPECT_DOUBLE_EQ(clipped.grad_norm, 0x1p127 * std::sqrt(5.0));
    // Roundings: of the factor, a subnormal above 2^-129, and of its products to the format.
    const double rounding = 0x1p-150 / 0x1p-129 + (dtype == at::kBFloat16 ? kBf16Unit : 0x1p-24);
    EXPECT_NEAR(beyond.to(at::kDouble).coalesce()._values().norm().item<double>(), 1, rounding);
    const at::Tensor bad = at::sparse_coo_tensor(indices, at::tensor({1.0f, inf, -1.0f}).to(dtype), {6});
    EXPECT_EQ(unscale_gradients_({at::ones(2), bad}, {.inv_scale = 0.5f}).first_non_finite, 1);
  }
}

TEST(UnscaleGradients, AnInverseThatIsNotFiniteLeavesNothingFinite) {
  for (const float inverse : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const std::vector<at::Tensor> before = gradients(), grads = gradients();
    const UnscaleSummary summary = unscale_gradients_(grads, {.inv_scale = inverse, .max_norm = 1});
    EXPECT_EQ(summary.non_finite, elements(grads));
    EXPECT_EQ(summary.first_non_finite, 0);
    EXPECT_FALSE(std::isfinite(summary.grad_norm));
    for (size_t i = 0; i < grads.size(); ++i) EXPECT_TRUE(at::equal(grads[i], before[i])) << i;
    grads[3].fill_(std::numeric_limits<float>::quiet_NaN());
    EXPECT_EQ(unscale_gradients_(grads, {.inv_scale = inverse}).first_non_finite, 3) << "the one that came so";
  }
}

TEST(UnscaleGradients, RefusesWhatItCannotScale) {
  EXPECT_THAT([] { unscale_gradients_({at::ones(3, at::kLong)}, {}); }, ThrowsMessage<c10::Error>(HasSubstr("got")));
}

}  // namespace
}  // namespace plimsoll::amp
