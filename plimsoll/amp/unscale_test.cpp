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
  EXPECT_NEAR(again.grad_norm, 2, 0x1p-7);  // the bf16 one rounds
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
  EXPECT_NEAR(summary.grad_norm, std::sqrt(10.0), 1e-12);
}

TEST(UnscaleGradients, RefusesWhatItCannotScale) {
  EXPECT_THAT([] { unscale_gradients_({at::ones(3)}, {.inv_scale = std::numeric_limits<float>::infinity()}); },
              ThrowsMessage<c10::Error>(HasSubstr("expected a finite inverse scale")));
  const at::Tensor twice = at::sparse_coo_tensor(at::zeros({1, 2}, at::kLong), at::ones(2), {3});
  EXPECT_THAT([&] { unscale_gradients_({twice}, {}); }, ThrowsMessage<c10::Error>(HasSubstr("coalesced")));
  EXPECT_THAT([] { unscale_gradients_({at::ones(3, at::kLong)}, {}); }, ThrowsMessage<c10::Error>(HasSubstr("got")));
}

}  // namespace
}  // namespace plimsoll::amp
