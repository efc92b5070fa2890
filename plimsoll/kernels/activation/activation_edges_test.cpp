// Activations at the edges: values that are not finite, limits, arguments far from zero, matrices without elements.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "plimsoll/kernels/activation/activation_oracle.h"
#include "plimsoll/kernels/activation/activation_testing.h"
#include "plimsoll/kernels/testing.h"

namespace plimsoll::kernels {
namespace {

using namespace testing;

TEST(Activation, AClampedGateAndValueHaveNoGradientBeyondTheLimitAndTheLimitIsWithin) {
  const float beyond = std::nextafter(7.0f, 8.0f);
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    const Case c{.kind = Activation::kClampedSwiglu, .rows = 1, .cols = 4};
    Inputs in(c);
    in.x = Array(Format::kFp32, std::vector<float>{7, beyond, 1, 1, 7, 1, beyond, -beyond});
    in.dy = Array(Format::kFp32, std::vector<float>{1, 1, 1, 1});
    const Forward out = forward(c, in);
    const Backward back = backward(c, in);
    EXPECT_EQ(out.y.at(1) * 4, out.y.at(0));       // the same gate, times 2 and times 8
    EXPECT_EQ(out.y.at(3) * -4, out.y.at(2) * 3);  // clamped to -7 and 7: times -6 and 8
    EXPECT_NE(back.dx.at(0), 0.0f);
    EXPECT_EQ(back.dx.at(1), 0.0f);
    EXPECT_NE(back.dx.at(4), 0.0f);
    EXPECT_EQ(back.dx.at(6), 0.0f);
    EXPECT_EQ(back.dx.at(7), 0.0f);
  }
}

TEST(Activation, ANonFiniteValueStaysWhereItIsAndIsSeen) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (const auto& [kind, name, curve, gated, parameters] : kActivations) {
      for (float poison : {kInf, kNan}) {
        for (int64_t place : {0, 36}) {
          const Case c{.kind = kind};
          const bool is_bounded = curve == Curve::kSigmoid || curve == Curve::kClampedSilu;
          const bool becomes_finite = is_bounded && poison == kInf;
          Inputs in(c);
          for (int64_t i = 0; i < in.x.count(); ++i) in.x.set(i, 0.5f);
          const Forward clean = forward(c, in);
          const Backward clean_back = backward(c, in);
          const int64_t spot = c.cols + place;
          in.x.set(c.gate(1, place), poison);
          const Forward out = forward(c, in);
          for (int64_t i = 0; i < out.y.count(); ++i) {
            ASSERT_TRUE(i == spot ? std::isfinite(out.y.at(i)) == becomes_finite : out.y.code(i) == clean.y.code(i))
                << describe(c);
          }
          EXPECT_EQ(std::isfinite(out.amax), becomes_finite);

          in.x.set(c.gate(1, place), 0.5f);
          in.dy.set(spot, poison);
          const Backward back = backward(c, in);
          for (int64_t i = 0; i < back.dx.count(); ++i) {
            const bool poisoned = i == c.gate(1, place) || (is_gated(kind) && i == c.value(1, place));
            ASSERT_TRUE(poisoned ? !std::isfinite(back.dx.at(i)) : back.dx.code(i) == clean_back.dx.code(i));
          }
          EXPECT_FALSE(std::isfinite(back.amax));
          EXPECT_FALSE(std::isfinite(back.column_sum.at(place)));
        }
      }
    }
  }
}

TEST(Activation, ANanBeforeTheActivationMakesANanGradient) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (const auto& [kind, name, curve, gated, parameters] : kActivations) {
      const Case c{.kind = kind};
      Inputs in(c);
      in.x.set(c.gate(1, 20), std::numeric_limits<float>::quiet_NaN());
      EXPECT_TRUE(std::isnan(backward(c, in).dx.at(c.gate(1, 20)))) << describe(c);
    }
  }
}

TEST(Activation, MinusInfIsSeenInGeluAndSiluAndIsZeroInRelu) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (Activation kind : {Activation::kGelu, Activation::kRelu, Activation::kSilu}) {
      const Case c{.kind = kind};
      Inputs in(c);
      in.x.set(20, -std::numeric_limits<float>::infinity());
      const float y = forward(c, in).y.at(20);
      EXPECT_TRUE(kind == Activation::kRelu ? y == 0.0f : std::isnan(y)) << describe(c);
    }
  }
}

TEST(Activation, TheSigmoidsGradientKeepsItsDigitsFarFromZero) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (float x : {-120.0f, -88.5f, -60.0f, -20.0f, 20.0f, 60.0f, 88.5f, 120.0f}) {
      const Case c{.kind = Activation::kGlu, .rows = 1, .cols = 1};
      Inputs in(c);
      in.x.set(0, x);
      in.x.set(1, 1);
      in.dy.set(0, 1);
      const Value exact = derivative_oracle(Curve::kSigmoid, x);
      EXPECT_NEAR(backward(c, in).dx.at(0), exact.exact, exact.bound) << x << " " << runtime::name(isa);
    }
  }
}

TEST(Activation, InPlaceGivesTheSameBits) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (const auto& [kind, name, curve, gated, parameters] : kActivations) {
      if (gated) continue;
      for (const Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
        const Case c{.kind = kind, .rows = 5, .cols = 77, .x_format = format, .out_format = format};
        Inputs in(c);
        const Array y = forward(c, in).y;
        activation_forward({.activation = c.spec(),
                            .rows = c.rows,
                            .cols = c.cols,
                            .x = in.x.data(),
                            .x_format = format,
                            .y = in.x.data(),
                            .y_format = format});
        EXPECT_TRUE(same(in.x, y)) << describe(c) << " " << runtime::name(isa);
      }
    }
  }
}

TEST(Activation, EmptyMatricesGiveZeroAmaxAndZeroSums) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (const auto& [kind, name, curve, gated, parameters] : kActivations) {
      for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{0, 5}, {5, 0}, {0, 0}}) {
        const Case c{.kind = kind, .rows = rows, .cols = cols};
        Inputs in(c);
        EXPECT_EQ(forward(c, in).amax, 0.0f);
        const Backward back = backward(c, in);
        EXPECT_EQ(back.amax, 0.0f);
        for (int64_t i = 0; i < c.x_cols(); ++i) EXPECT_EQ(back.column_sum.at(i), 0.0f);
      }
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels
