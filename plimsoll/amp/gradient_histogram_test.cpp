#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "plimsoll/amp/gradient_sample.h"

namespace plimsoll::amp {
namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity();

TEST(GradientHistogram, CountsByPowersOfTwoAndLeavesOutZerosAndWhatIsNotFinite) {
  const at::Tensor grad = at::tensor({0.0f, -0.0f, 1.0f, -1.5f, 2.0f, 0x1p-140f, kInfinite, std::nanf("")});
  const GradientHistogram histogram = gradient_histogram({grad});
  EXPECT_EQ(histogram.total(), 4);
  EXPECT_EQ(histogram.counts[127], 2);
  EXPECT_EQ(histogram.counts[128], 1);
  EXPECT_EQ(histogram.counts[0], 1);
  EXPECT_EQ(histogram.share_below(0), 0.25);
  EXPECT_EQ(histogram.share_below(1), 0.75);
  EXPECT_EQ(histogram.share_below(-200), 0);
  EXPECT_EQ(histogram.share_below(500), 1);
}

TEST(GradientHistogram, TheFlushedShareIsWhatFp16HoldsAsZeroOrSubnormal) {
  const at::Tensor grad = at::pow(2.0, -at::arange(0, 40, at::kFloat));
  const at::Tensor half = grad.to(at::kHalf).to(at::kFloat);
  const double subnormal = (half < 0x1p-14f).sum().item<double>() / 40;
  EXPECT_EQ(gradient_histogram({grad}).flushed_share(), subnormal);
  EXPECT_EQ(gradient_histogram({at::zeros(5)}).flushed_share(), 0);
}

TEST(GradientHistogram, TakesEveryKindOfGradient) {
  const at::Tensor x = at::rand({40, 30}) + 1;
  const at::Tensor sparse = at::sparse_coo_tensor(at::arange(40).unsqueeze(0), x, {50, 30}).coalesce();
  for (const at::Tensor& grad : {x, x.t(), x.to(at::kHalf), x.to(at::kBFloat16), x.to(at::kDouble), sparse}) {
    const at::Tensor values = grad.is_sparse() ? grad._values() : grad;
    // Elements that round up to 2 have the next exponent.
    EXPECT_EQ(gradient_histogram({grad}).counts[127], (values.to(at::kFloat) < 2).sum().item<int64_t>());
  }
  EXPECT_EQ(gradient_histogram({x.slice(1, 3, 20), at::empty({0})}).total(), 40 * 17);
  EXPECT_EQ(gradient_histogram({}).total(), 0);
}

TEST(GradientHistogram, OfManyItTakesASample) {
  const at::Tensor many = at::rand({3'000'001}) < 0.25;
  const GradientHistogram histogram = gradient_histogram({many.to(at::kFloat) + 1, at::ones({3})});
  const auto total = static_cast<double>(histogram.total());
  EXPECT_GE(total, 1 << 16);
  EXPECT_LT(total, 1 << 17);
  // Five standard deviations of a binomial share.
  EXPECT_NEAR(histogram.share_below(1), 0.75, 5 * std::sqrt(0.25 * 0.75 / total));
}

}  // namespace
}  // namespace plimsoll::amp
