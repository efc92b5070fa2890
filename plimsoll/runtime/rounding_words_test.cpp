#include "plimsoll/runtime/rounding_words.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace plimsoll::runtime {
namespace {

constexpr uint64_t kSeeds[] = {0, 1, 77, 0x9E3779B97F4A7C15u}, kSteps[] = {1, 2, 300, 1u << 20};
constexpr double kDeviations = 6;  // of a statistic of random words: fails once in 10^9

// Halves that rounding compares with a fraction, centred, in units of their standard deviation.
struct Halves {
  double upper, lower;
  explicit Halves(uint32_t word) : upper(centred(word >> 16)), lower(centred(word & 0xffff)) {}
  static double centred(uint32_t half) { return (half - 32767.5) / (65536 / std::sqrt(12.0)); }
};

// A sum of n products of independent halves has a deviation of sqrt(n).
void expect_no_correlation(double sum, double n, const char* what) {
  EXPECT_LE(std::fabs(sum), kDeviations * std::sqrt(n)) << what;
}

TEST(RoundingWords, EveryByteIsUniform) {
  constexpr uint64_t kCount = 1 << 16;
  for (uint64_t seed : kSeeds) {
    for (uint64_t step : kSteps) {
      std::array<std::array<double, 256>, 4> seen{};
      const RoundingWords words{.seed = seed, .step = step};
      for (uint64_t i = 0; i < kCount; ++i) {
        for (size_t byte = 0; byte < 4; ++byte) ++seen[byte][words.word(i) >> (8 * byte) & 0xff];
      }
      for (const auto& counts : seen) {
        double chi_square = 0;
        for (double count : counts)
          chi_square += (count - kCount / 256.0) * (count - kCount / 256.0) / (kCount / 256.0);
        EXPECT_NEAR(chi_square, 255, kDeviations * std::sqrt(2 * 255.0)) << seed << " " << step;
      }
    }
  }
}

TEST(RoundingWords, ElementsStepsSeedsAndHalvesAreNotCorrelated) {
  constexpr uint64_t kCount = 1 << 16;
  for (uint64_t seed : kSeeds) {
    for (uint64_t step : kSteps) {
      const RoundingWords words{.seed = seed, .step = step}, next_step{.seed = seed, .step = step + 1},
          next_seed{.seed = seed + 1, .step = step};
      double mean = 0, halves = 0, elements = 0, rows = 0, steps = 0, seeds = 0, upper_halves = 0;
      for (uint64_t i = 0; i < kCount; ++i) {
        const Halves here(words.word(i));
        mean += here.upper + here.lower;
        halves += here.upper * here.lower;
        elements += here.upper * Halves(words.word(i + 1)).upper;
        rows += here.lower * Halves(words.word(i + 4096)).lower;
        steps += here.upper * Halves(next_step.word(i)).upper;
        seeds += here.upper * Halves(next_seed.word(i)).upper;
        upper_halves += here.upper * Halves(words.word(i + (uint64_t{1} << 32))).upper;
      }
      expect_no_correlation(mean, 2 * kCount, "mean");
      expect_no_correlation(halves, kCount, "halves");
      expect_no_correlation(elements, kCount, "elements");
      expect_no_correlation(rows, kCount, "rows");
      expect_no_correlation(steps, kCount, "steps");
      expect_no_correlation(seeds, kCount, "seeds");
      expect_no_correlation(upper_halves, kCount, "elements that are 2^32 apart");
    }
  }
}

// The words of one weight in a training run.
TEST(RoundingWords, TheStepsOfOneElementAreUniformAndNotCorrelated) {
  constexpr uint64_t kCount = 1 << 16;
  for (uint64_t element : {uint64_t{0}, uint64_t{1}, uint64_t{12345}, (uint64_t{5} << 32) + 3}) {
    double mean = 0, neighbours = 0;
    for (uint64_t step = 1; step <= kCount; ++step) {
      const Halves here((RoundingWords{.seed = 7, .step = step}.word(element)));
      mean += here.upper;
      neighbours += here.upper * Halves((RoundingWords{.seed = 7, .step = step + 1}.word(element))).upper;
    }
    expect_no_correlation(mean, kCount, "mean");
    expect_no_correlation(neighbours, kCount, "steps");
  }
}

// The rounding of a sum of many: fractions as small as 2^-16 go up as often as they should.
TEST(RoundingWords, SmallFractionsGoUpAsOftenAsTheyShould) {
  constexpr uint64_t kCount = 1 << 20;
  const RoundingWords words{.seed = 3, .step = 9};
  for (uint32_t fraction : {1u, 2u, 100u, 32768u, 65535u}) {
    double upper = 0, lower = 0;
    for (uint64_t i = 0; i < kCount; ++i) {
      upper += (words.word(i) >> 16) + fraction >= 65536;
      lower += (words.word(i) & 0xffff) + fraction >= 65536;
    }
    const double p = fraction / 65536.0, deviation = std::sqrt(kCount * p * (1 - p));
    EXPECT_NEAR(upper, p * kCount, kDeviations * deviation) << fraction;
    EXPECT_NEAR(lower, p * kCount, kDeviations * deviation) << fraction;
  }
}

// A bit of the element, the step or the seed changes each bit of the word as often as not.
TEST(RoundingWords, EachBitDependsOnEachBit) {
  constexpr int kWords = 4096;
  const double bound = kDeviations * std::sqrt(kWords) / 2;
  for (int bit = 0; bit < 64; ++bit) {
    for (int what = 0; what < 3; ++what) {
      std::array<int, 32> changes{};
      for (uint64_t i = 0; i < kWords; ++i) {
        RoundingWords words{.seed = i * 0x9E3779B97F4A7C15u, .step = i};
        uint64_t element = i * 977;
        const uint32_t before = words.word(element);
        (what == 0 ? element : what == 1 ? words.step : words.seed) ^= uint64_t{1} << bit;
        const uint32_t changed = before ^ words.word(element);
        for (size_t k = 0; k < 32; ++k) changes[k] += static_cast<int>(changed >> k & 1);
      }
      for (size_t k = 0; k < 32; ++k) EXPECT_NEAR(changes[k], kWords / 2, bound) << what << " " << bit << " " << k;
    }
  }
}

}  // namespace
}  // namespace plimsoll::runtime
