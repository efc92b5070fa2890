#include "plimsoll/kernels/rotary/rotary.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "plimsoll/kernels/testing.h"

namespace plimsoll::kernels {
namespace {

using namespace testing;

struct Case {
  int64_t tokens = 6, heads = 3, channels = 40, rotated = 40, positions = 3, repeats = 2;
  Format format = Format::kFp32;
  bool interleaved = false, transposed = false;
  int64_t gap = 5;  // elements between the heads of x
  int64_t copied_heads = 0;

  int64_t head_stride() const { return channels + gap; }
  int64_t token_stride() const { return heads * head_stride() + gap; }
};

std::string describe(const Case& c) {
  return std::to_string(c.tokens) + " x " + std::to_string(c.heads) + " x " + std::to_string(c.channels) + ", " +
         std::to_string(c.rotated) + " rotated, " + std::string(format::info(c.format).name) +
         (c.interleaved ? " interleaved" : "") + (c.transposed ? " transposed" : "");
}

struct Inputs {
  Array x, cosine, sine;
  explicit Inputs(const Case& c)
      : x(c.format, sample(c.tokens * c.token_stride(), 1)),
        cosine(Format::kFp32, sample(c.positions * c.rotated, 2)),
        sine(Format::kFp32, sample(c.positions * c.rotated, 3)) {}
};

Array run(const Case& c, Inputs& in) {
  Array y(c.format, c.tokens * c.heads * c.channels);
  rotary({.tokens = c.tokens,
          .heads = c.heads,
          .channels = c.channels,
          .rotated = c.rotated,
          .copied_heads = c.copied_heads,
          .x = in.x.data(),
          .x_token_stride = c.token_stride(),
          .x_head_stride = c.head_stride(),
          .y = y.data(),
          .format = c.format,
          .cosine = in.cosine.floats(),
          .sine = in.sine.floats(),
          .positions = c.positions,
          .repeats = c.repeats,
          .interleaved = c.interleaved,
          .transposed = c.transposed});
  EXPECT_TRUE(y.guards_intact());
  return y;
}

// Products of two floats are exact in double, so this rounds where FP32 does.
float sum_of_products(float a, float b, float c, float d) {
  const auto once = [](float x, float y) { return static_cast<float>(double{x} * double{y}); };
  return static_cast<float>(double{once(a, b)} + double{once(c, d)});
}

// The matrix of each pair, written out: row r of it times x.
float expected(const Case& c, const Inputs& in, int64_t token, int64_t head, int64_t channel) {
  const int64_t x = token * c.token_stride() + head * c.head_stride();
  if (channel >= c.rotated || head >= c.heads - c.copied_heads) return in.x.at(x + channel);
  const int64_t half = c.rotated / 2;
  const bool is_first = c.interleaved ? channel % 2 == 0 : channel < half;
  const int64_t distance = c.interleaved ? 1 : half;
  const int64_t other = is_first ? channel + distance : channel - distance;
  const int64_t angles = token / c.repeats % c.positions * c.rotated;
  const float sine = in.sine.at(angles + (c.transposed ? other : channel));
  const bool negative = is_first != c.transposed;
  return sum_of_products(in.x.at(x + channel), in.cosine.at(angles + channel), in.x.at(x + other),
                         negative ? -sine : sine);
}

void check(const Case& c) {
  SCOPED_TRACE(describe(c));
  Inputs in(c);
  const Array y = run(c, in);
  Array exact(c.format, y.count());
  for (int64_t i = 0; i < y.count(); ++i) {
    exact.set(i, expected(c, in, i / c.channels / c.heads, i / c.channels % c.heads, i % c.channels));
  }
  EXPECT_TRUE(same(y, exact));
}

class RotaryTest : public ::testing::TestWithParam<runtime::Isa> {
 protected:
  runtime::ScopedIsa isa_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(EveryIsa, RotaryTest, ::testing::ValuesIn(isas_present()));

TEST_P(RotaryTest, TurnsEachPairByTheAnglesOfItsPosition) {
  for (const Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
    for (const bool interleaved : {false, true}) {
      for (const bool transposed : {false, true}) {
        check({.format = format, .interleaved = interleaved, .transposed = transposed});
      }
    }
  }
}

TEST_P(RotaryTest, HoldsForAnySizes) {
  for (const bool interleaved : {false, true}) {
    for (const int64_t rotated : {0, 2, 30, 32, 34, 62, 64, 66, 2050}) {
      check({.channels = rotated + 3, .rotated = rotated, .interleaved = interleaved});
      check({.channels = rotated + 1, .rotated = rotated, .format = Format::kBf16, .interleaved = interleaved});
    }
    check({.tokens = 0, .interleaved = interleaved});
    check({.heads = 0, .interleaved = interleaved});
    for (const int64_t copied : {1, 3}) check({.interleaved = interleaved, .copied_heads = copied});
    check({.tokens = 1, .heads = 1, .channels = 2, .rotated = 2, .positions = 1, .repeats = 1});
  }
}

TEST_P(RotaryTest, LargeAndNonFiniteValuesGoThrough) {
  Case c;
  Inputs in(c);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  in.x.set(0, kInf);
  in.x.set(1, std::numeric_limits<float>::quiet_NaN());
  in.x.set(2, std::numeric_limits<float>::max());
  const Array y = run(c, in);
  for (const int64_t channel : {0, 1, 2, 20, 21, 22}) {
    EXPECT_TRUE(same(y.at(channel), expected(c, in, 0, 0, channel))) << channel;
  }
}

TEST(RotaryBits, DoNotDependOnIsaOrThreads) {
  const Case c{.tokens = 301, .heads = 7, .channels = 66, .rotated = 64, .positions = 43, .format = Format::kBf16};
  Inputs in(c);
  const Array first = run(c, in);
  for (const runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (const int threads : {1, 2, 5}) {
      const ScopedThreads count(threads);
      EXPECT_TRUE(same(run(c, in), first));
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels
