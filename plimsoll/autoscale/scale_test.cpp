#include "plimsoll/autoscale/scale.h"

#include <gtest/gtest.h>

#include <cmath>

namespace plimsoll::autoscale {
namespace {

Scale unit(int32_t exponent) { return {.exponent = exponent, .remainder = 0, .bound = 2}; }

// As the rules divide.
Scale quotient(const Scale& a, const Scale& b) { return product(a, power(b, -1)); }

TEST(Scale, MeasuredDataHaveAnRmsNearOne) {
  for (const double rms : {1e-30, 0.3, 1.0, 0.70, 0.72, 5e20}) {
    const Scale scale = scale_of(rms, 4 * rms);
    EXPECT_GE(scale.remainder, -0.5);
    EXPECT_LE(scale.remainder, 0.5);
    EXPECT_DOUBLE_EQ(scale.rms(), std::log2(rms));
    EXPECT_DOUBLE_EQ(scale.largest(), std::log2(4 * rms));
  }
}

TEST(Scale, AnOutlierRaisesTheExponentUntilItFits) {
  const Scale scale = scale_of(1.0, std::exp2(20));
  EXPECT_EQ(scale.exponent, 5);
  EXPECT_LE(scale.bound, kHeadroom);
}

TEST(Scale, AnExactZeroChangesNothingThatItIsAddedTo) {
  EXPECT_TRUE(scale_of(0, 0).is_zero());
  const Scale x = unit(-60);
  EXPECT_EQ(sum(zero_scale(), x).exponent, -60);
  EXPECT_EQ(sum(x, zero_scale()).bound, x.bound);
  EXPECT_TRUE(product(x, zero_scale()).is_zero());
  EXPECT_TRUE(power(zero_scale(), 0.5).is_zero());
  EXPECT_EQ(shift(zero_scale(), 100), 1);
}

TEST(Scale, AMaskIsKeptWithoutAScaleUnderAnExponentOfZeroOrMore) {
  EXPECT_TRUE(scale_of_number(-3.4e38).is_mask());
  EXPECT_FALSE(scale_of_number(0).is_mask());
  EXPECT_FALSE(scale_of_number(1e30).is_mask());
  EXPECT_EQ(sum(unit(-14), mask_scale()).exponent, 0);
  EXPECT_EQ(sum(mask_scale(), unit(5)).exponent, 5);
  EXPECT_LE(sum(unit(5), mask_scale()).bound, kHeadroom);
}

TEST(Scale, DividingByAnExactZeroSaysThatNothingIsKnown) {
  EXPECT_EQ(quotient(unit(3), zero_scale()).bound, kUnbounded);
  EXPECT_EQ(quotient(zero_scale(), zero_scale()).bound, kUnbounded);
}

TEST(Scale, ProductsAddExponentsAndQuotientsSubtractThem) {
  for (int32_t i = -40; i <= 40; i += 8)
    for (int32_t j = -40; j <= 40; j += 8) {
      EXPECT_EQ(product(unit(i), unit(j)).exponent, i + j);
      EXPECT_EQ(quotient(unit(i), unit(j)).exponent, i - j);
      EXPECT_EQ(product(unit(i), unit(j)).bound, 4);
    }
  EXPECT_EQ(power(unit(6), 0.5).exponent, 3);
  EXPECT_EQ(power(unit(6), 3).exponent, 18);
}

TEST(Scale, AThousandAdditionsGrowAsTheRootOfTheirNumber) {
  Scale total = unit(0);
  for (int i = 1; i < 1000; ++i) total = settled_if_due(sum(total, unit(0)));
  // Roundings of numbers of at most 5: three in the logarithm of a sum, one to the remainder, two where it settles.
  EXPECT_NEAR(total.rms(), std::log2(1000.0) / 2, 999 * 6 * 5 * 0x1p-53);
  EXPECT_LT(std::fabs(total.remainder), kSlack);
}

TEST(Scale, ChainedProductsOfOddPowersKeepTheirRemainder) {
  // K = 512: each product multiplies the rms by 2^4.5. Rounded down each time, 20 of them would lose 2^10.
  Scale x = unit(0);
  for (int i = 0; i < 20; ++i) x = settled(sum_over(product(x, unit(0)), 512));
  EXPECT_EQ(x.exponent, 90);
  EXPECT_EQ(x.remainder, 0);  // halves are exact
}

TEST(Scale, SettlingChangesNeitherRmsNorBoundOfTheValue) {
  const Scale x = {.exponent = 7, .remainder = -3.3, .bound = 4};
  const Scale moved = settled(x);
  EXPECT_DOUBLE_EQ(moved.rms(), x.rms());
  EXPECT_DOUBLE_EQ(moved.largest(), x.largest());
  EXPECT_GE(moved.remainder, -0.5);
  EXPECT_LT(moved.remainder, 0.5);
  EXPECT_EQ(shift(x, moved.exponent), std::exp2(7 - moved.exponent));
}

TEST(Scale, ExponentsSaturateInsteadOfOverflowing) {
  Scale x = unit(40);
  for (int i = 0; i < 64; ++i) x = product(x, x);
  EXPECT_EQ(x.exponent, kLargestExponent);
  x = unit(-40);
  for (int i = 0; i < 64; ++i) x = product(x, x);
  EXPECT_TRUE(x.is_zero());
}

TEST(Scale, TheLargerExponentAlignsASum) {
  const Scale total = sum(unit(10), unit(-10));
  EXPECT_EQ(total.exponent, 10);
  EXPECT_EQ(total.bound, 3);
  // Rounded with the exponent, 10, on it.
  EXPECT_NEAR(total.remainder, std::log2(1 + 0x1p-40) / 2, 16 * 0x1p-53);
}

}  // namespace
}  // namespace plimsoll::autoscale
