#include "plimsoll/gauge/loss_scale_choice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace plimsoll::gauge {
namespace {

// Gradients of which a share underflows that halves with each doubling, beside rounding.
double underflowing(double loss_scale, double share) { return 1e-3 + share / loss_scale; }

TEST(LossScaleChoice, IsNoneWhereNothingUnderflows) {
  const LossScaleChoice choice = choose_loss_scale([](double) { return 1e-3; }, 1e9);
  EXPECT_EQ(choice.loss_scale, 1);
  EXPECT_EQ(choice.error, 1e-3);
  EXPECT_EQ(choice.trials.size(), 9u);  // 4^0 to 4^8
}

TEST(LossScaleChoice, IsTheSmallestThatIsNearTheBest) {
  // At 2^16 1e-3 * (1 + 1 / 65.536); at 256 4.9e-3, at 1024 1.98e-3, at 4096 1.24e-3 and within a quarter of it.
  const LossScaleChoice choice = choose_loss_scale([](double scale) { return underflowing(scale, 1); }, 1e9);
  EXPECT_EQ(choice.loss_scale, 4096);
  EXPECT_EQ(choice.error, underflowing(4096, 1));
}

TEST(LossScaleChoice, StaysWhereGradientsKeepTheirHeadroom) {
  const LossScaleChoice choice = choose_loss_scale([](double scale) { return underflowing(scale, 1); }, 100);
  EXPECT_EQ(choice.loss_scale, 64);
  EXPECT_EQ(choice.trials.size(), 4u);
  EXPECT_EQ(choose_loss_scale([](double) { return 1.0; }, 0.01).trials.size(), 1u);
}

TEST(LossScaleChoice, LeavesScalesThatOverflow) {
  const LossScaleChoice choice =
      choose_loss_scale([](double scale) { return scale > 16 ? std::nan("") : underflowing(scale, 1); }, 1e9);
  EXPECT_EQ(choice.loss_scale, 16);
  const LossScaleChoice none = choose_loss_scale([](double) { return std::nan(""); }, 1e9);
  EXPECT_EQ(none.error, std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace plimsoll::gauge
