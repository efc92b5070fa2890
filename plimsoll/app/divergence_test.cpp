#include "plimsoll/app/divergence.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

namespace plimsoll::app {
namespace {

at::Tensor log_probabilities(int64_t rows, int64_t classes) {
  return at::log_softmax(at::randn({rows, classes}, at::kDouble), -1);
}

TEST(Divergence, IsThatOfTwoCoins) {
  const double kLog[] = {std::log(0.25), std::log(0.75), std::log(0.5), std::log(0.5)};
  at::Tensor p = at::empty({2, 2}, at::kDouble), q = at::empty({2, 2}, at::kDouble);
  for (int64_t i = 0; i < 4; ++i) {
    p.mutable_data_ptr<double>()[i] = kLog[i];
    q.mutable_data_ptr<double>()[i] = kLog[(i + 2) % 4];
  }
  EXPECT_THAT(divergences(p, q), testing::ElementsAre(testing::DoubleNear(0.75 * std::log(3) - std::log(2), 1e-15),
                                                      testing::DoubleNear(std::log(2) - 0.5 * std::log(3), 1e-15)));
  EXPECT_THAT(divergences(p, p), testing::ElementsAre(0, 0));
}

TEST(Divergence, ARowHasTheSameBitsAloneAndBesideOthers) {
  at::manual_seed(1);
  const at::Tensor p = log_probabilities(33, 1001), q = log_probabilities(33, 1001);
  const std::vector<double> together = divergences(p, q);
  for (int64_t row = 0; row < 33; ++row) {
    EXPECT_THAT(divergences(p.narrow(0, row, 1), q.narrow(0, row, 1)),
                testing::ElementsAre(together[static_cast<size_t>(row)]));
  }
}

TEST(Divergence, OfWhatIsNotFiniteIsNaN) {
  at::Tensor p = log_probabilities(2, 3), q = p.clone();
  q.mutable_data_ptr<double>()[1] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(divergences(p, q), testing::ElementsAre(testing::IsNan(), 0));
}

TEST(AgreeingRows, HaveTheLikeliestClassAmongSoMany) {
  at::manual_seed(2);
  const at::Tensor p = log_probabilities(20, 9), order = p.argsort(-1, /*descending=*/true);
  EXPECT_EQ(agreeing_rows(p, p, 1), 20);
  for (int64_t place = 0; place < 9; ++place) {
    // The first class of p becomes the one at `place` of q.
    at::Tensor q = p.clone();
    const at::Tensor first = order.narrow(1, 0, 1), other = order.narrow(1, place, 1);
    q.scatter_(1, first, p.gather(1, other)).scatter_(1, other, p.gather(1, first) - (place == 0 ? 0 : 1e-9));
    EXPECT_EQ(agreeing_rows(p, q, 1), place == 0 ? 20 : 0);
    EXPECT_EQ(agreeing_rows(p, q, 5), place < 5 ? 20 : 0) << place;
  }
}

TEST(AgreeingRows, NaNAgreesWithNothing) {
  const at::Tensor p = log_probabilities(3, 4), nan = p * std::numeric_limits<double>::quiet_NaN();
  for (const int64_t most : {1, 5}) {
    EXPECT_EQ(agreeing_rows(p, nan, most), 0);
    EXPECT_EQ(agreeing_rows(nan, p, most), 0);
    EXPECT_EQ(agreeing_rows(nan, nan, most), 0);
    at::Tensor one = p.clone();
    one[1][2] = NAN;
    EXPECT_EQ(agreeing_rows(p, one, most), 2);
  }
}

}  // namespace
}  // namespace plimsoll::app
