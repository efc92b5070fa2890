#include "plimsoll/kernels/gradient/gradient.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "plimsoll/format/codec.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

using format::Format;
using runtime::Isa;

constexpr int64_t kCounts[] = {0, 1, 15, 16, 17, 4095, 4096, 4097, 100003};
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<Isa> present() {
  std::vector<Isa> result;
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= runtime::detected_isa()) result.push_back(isa);
  }
  return result;
}

// A list of tensors whose bytes can be compared.
class Tensors {
 public:
  void add(Format format, const std::vector<float>& values) {
    std::vector<uint8_t> bytes;
    for (float value : values) {
      const uint32_t code = format::encode(format, value);
      for (int64_t b = 0; b < format::bytes(format); ++b) bytes.push_back(static_cast<uint8_t>(code >> (8 * b)));
    }
    formats_.push_back(format);
    bytes_.push_back(std::move(bytes));
  }
  std::vector<GradientTensor> views() {
    std::vector<GradientTensor> list;
    for (size_t t = 0; t < bytes_.size(); ++t) list.push_back({bytes_[t].data(), formats_[t], count(t)});
    return list;
  }
  size_t size() const { return bytes_.size(); }
  int64_t count(size_t t) const { return static_cast<int64_t>(bytes_[t].size()) / format::bytes(formats_[t]); }
  Format format(size_t t) const { return formats_[t]; }
  float value(size_t t, int64_t i) const { return format::decode(formats_[t], code(t, i)); }
  uint32_t code(size_t t, int64_t i) const {
    uint32_t result = 0;
    const int64_t width = format::bytes(formats_[t]);
    for (int64_t b = 0; b < width; ++b) result |= uint32_t{bytes_[t][static_cast<size_t>(i * width + b)]} << (8 * b);
    return result;
  }
  bool operator==(const Tensors&) const = default;

 private:
  std::vector<Format> formats_;
  std::vector<std::vector<uint8_t>> bytes_;
};

std::vector<float> values(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1e-2f);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = normal(random);
  const float special[] = {0.0f, -0.0f, 0x1p-149f, -0x1p-126f, 300.0f, 1e-30f};
  for (size_t i = 0; i < x.size(); i += 7) x[i] = special[i / 7 % 6];
  return x;
}

Tensors mixed() {
  Tensors tensors;
  uint32_t seed = 1;
  for (int64_t count : kCounts) {
    for (Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) tensors.add(format, values(count, seed++));
  }
  return tensors;
}

GradientSummary run(Tensors& tensors, float scale, bool write) {
  const std::vector<GradientTensor> views = tensors.views();
  return gradient_pass({.tensors = views.data(), .tensor_count = views.size(), .scale = scale, .write = write});
}

TEST(GradientPass, SumsSquaresAsWellAsDoubleCan) {
  for (Isa isa : present()) {
    const runtime::ScopedIsa scope(isa);
    for (float scale : {1.0f, 1.0f / 3.0f}) {
      Tensors tensors = mixed();
      long double exact = 0;
      int64_t terms = 0;
      for (size_t t = 0; t < tensors.size(); ++t) {
        terms += tensors.count(t);
        for (int64_t i = 0; i < tensors.count(t); ++i) {
          const float y = tensors.value(t, i) * scale;
          exact += static_cast<long double>(y) * y;
        }
      }
      const Tensors before = tensors;
      const GradientSummary summary = run(tensors, scale, false);
      // All terms are positive, so each of at most `terms` additions in double is off by at most 2^-53 of the sum.
      const double bound = static_cast<double>(exact) * static_cast<double>(terms) * 0x1p-53;
      EXPECT_NEAR(summary.sum_of_squares, static_cast<double>(exact), bound);
      EXPECT_EQ(summary.non_finite, 0);
      EXPECT_EQ(summary.first_non_finite, -1);
      EXPECT_TRUE(tensors == before) << "nothing was asked to be written";
    }
  }
}

TEST(GradientPass, WritesScaledValuesRoundedOnce) {
  for (Isa isa : present()) {
    const runtime::ScopedIsa scope(isa);
    const Tensors before = mixed();
    Tensors after = before;
    run(after, 0.3f, true);
    for (size_t t = 0; t < before.size(); ++t) {
      for (int64_t i = 0; i < before.count(t); ++i) {
        ASSERT_EQ(after.code(t, i), format::encode(before.format(t), before.value(t, i) * 0.3f)) << t << " " << i;
      }
    }
  }
}

TEST(GradientPass, SameBitsOnEveryIsaAndThreadCount) {
  const int threads = runtime::threads();
  Tensors first = mixed();
  GradientSummary expected;
  {
    const runtime::ScopedIsa scope(Isa::kPortable);
    runtime::set_threads(1);
    expected = run(first, 0.7f, true);
  }
  for (Isa isa : present()) {
    const runtime::ScopedIsa scope(isa);
    for (int team : {1, 2, 5}) {
      runtime::set_threads(team);
      Tensors again = mixed();
      EXPECT_EQ(run(again, 0.7f, true).sum_of_squares, expected.sum_of_squares);
      EXPECT_TRUE(again == first);
    }
  }
  runtime::set_threads(threads);
}

TEST(GradientPass, FindsEveryNonFiniteElement) {
  for (Isa isa : present()) {
    const runtime::ScopedIsa scope(isa);
    for (Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
      for (float bad : {kInf, -kInf, kNan}) {
        for (int64_t position : {0, 15, 16, 4095, 4096, 9000}) {
          Tensors tensors;
          tensors.add(Format::kFp32, values(5000, 1));
          std::vector<float> x = values(9001, 2);
          x[static_cast<size_t>(position)] = bad;
          x[100] = bad;
          tensors.add(format, x);
          tensors.add(Format::kFp32, {bad});
          const GradientSummary summary = run(tensors, 0.5f, true);
          EXPECT_EQ(summary.non_finite, 3);
          EXPECT_EQ(summary.first_non_finite, 1);
          EXPECT_FALSE(std::isfinite(summary.sum_of_squares));
        }
      }
    }
  }
}

// Sums of blocks are exact here, so that the result shows which blocks were added first: a 1 after 2^54 is lost, 256 together are not.
TEST(GradientPass, AddsBlocksInGroups) {
  constexpr int64_t kBlock = 4096, kGroup = 256;
  std::vector<float> x(static_cast<size_t>(2 * kGroup * kBlock), 0.0f);
  x[0] = 0x1p27f;  // its square is 2^54
  for (int64_t block = kGroup; block < 2 * kGroup; ++block) x[static_cast<size_t>(block * kBlock)] = 1;
  for (Isa isa : present()) {
    const runtime::ScopedIsa scope(isa);
    Tensors tensors;
    tensors.add(Format::kFp32, {});
    tensors.add(Format::kFp32, x);
    EXPECT_EQ(run(tensors, 1, false).sum_of_squares, 0x1p54 + static_cast<double>(kGroup));
    tensors.add(Format::kFp32, {kInf});
    EXPECT_EQ(run(tensors, 1, false).first_non_finite, 2);
  }
}

TEST(GradientPass, LargeAndTinyGradientsNeitherOverflowNorVanish) {
  for (Isa isa : present()) {
    const runtime::ScopedIsa scope(isa);
    Tensors large, tiny;
    large.add(Format::kFp32, std::vector<float>(64, FLT_MAX));
    tiny.add(Format::kFp32, std::vector<float>(64, 0x1p-149f));
    EXPECT_EQ(run(large, 1, false).sum_of_squares, 64 * double{FLT_MAX} * double{FLT_MAX});
    EXPECT_EQ(run(large, 1, false).non_finite, 0);
    EXPECT_EQ(run(tiny, 1, false).sum_of_squares, 64 * 0x1p-298);
  }
}

TEST(GradientPass, OverflowByTheScaleCounts) {
  for (Isa isa : present()) {
    const runtime::ScopedIsa scope(isa);
    Tensors tensors;
    tensors.add(Format::kFp32, {1.0f, FLT_MAX});
    EXPECT_EQ(run(tensors, 2, false).non_finite, 1);
  }
}

TEST(GradientPass, AScaleThatIsNotFiniteLeavesNoElementFinite) {
  for (Isa isa : present()) {
    const runtime::ScopedIsa scope(isa);
    for (float scale : {kInf, kNan}) {
      Tensors tensors = mixed();
      int64_t elements = 0;
      for (size_t t = 0; t < tensors.size(); ++t) elements += tensors.count(t);
      EXPECT_EQ(run(tensors, scale, false).non_finite, elements);
    }
  }
}

TEST(GradientPass, NoTensorsGiveZero) {
  const GradientSummary summary = gradient_pass({});
  EXPECT_EQ(summary.sum_of_squares, 0);
  EXPECT_EQ(summary.first_non_finite, -1);
}

}  // namespace
}  // namespace plimsoll::kernels
