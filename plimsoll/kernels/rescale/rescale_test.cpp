#include "plimsoll/kernels/rescale/rescale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "plimsoll/format/codec.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

constexpr Format kFormats[] = {Format::kFp32, Format::kBf16, Format::kFp16};
constexpr runtime::Isa kIsas[] = {runtime::Isa::kPortable, runtime::Isa::kAvx2, runtime::Isa::kAvx512};

// Elements of one format.
class Array {
 public:
  Array(int64_t count, Format format)
      : format_(format), bytes_(static_cast<size_t>(count * format::bytes(format)) + 1) {}

  void* data() { return bytes_.data(); }
  float at(int64_t i) const {
    uint32_t code = 0;
    __builtin_memcpy(&code, &bytes_[offset(i)], size());
    return format::decode(format_, code);
  }
  void set(int64_t i, float value) {
    const uint32_t code = format::encode(format_, value);
    __builtin_memcpy(&bytes_[offset(i)], &code, size());
  }

 private:
  size_t size() const { return static_cast<size_t>(format::bytes(format_)); }
  size_t offset(int64_t i) const { return static_cast<size_t>(i) * size(); }

  Format format_;
  std::vector<uint8_t> bytes_;
};

float rounded(float value, Format format) { return format::decode(format, format::encode(format, value)); }

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

Array numbers(int64_t count, Format format, float size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Array array(count, format);
  for (int64_t i = 0; i < count; ++i) array.set(i, size * normal(random));
  return array;
}

struct Case {
  Format from, to;
  int64_t count;
  float factor;
  bool joins, splits;
};

void expect_rescaled(const Case& c) {
  Array input = numbers(c.count, c.from, 1, 1), input_remainder = numbers(c.count, c.from, 1, 2);
  Array output(c.count, c.to), output_remainder(c.count, c.to);
  const float amax = rescale({.input = input.data(),
                              .input_format = c.from,
                              .input_remainder = c.joins ? input_remainder.data() : nullptr,
                              .output = output.data(),
                              .output_format = c.to,
                              .output_remainder = c.splits ? output_remainder.data() : nullptr,
                              .count = c.count,
                              .factor = c.factor});
  float expected_amax = 0;
  for (int64_t i = 0; i < c.count; ++i) {
    float x = input.at(i);
    if (c.joins) x += input_remainder.at(i) / kRemainderUnit;
    x *= c.factor;
    expected_amax = std::max(expected_amax, std::fabs(x));
    const float y = rounded(x, c.to);
    ASSERT_EQ(output.at(i), y);
    if (c.splits) {
      ASSERT_EQ(output_remainder.at(i), rounded((x - y) * kRemainderUnit, c.to));
    }
  }
  ASSERT_EQ(amax, expected_amax);
}

TEST(Rescale, IsOneProductAndOneRoundingOnEveryIsa) {
  for (const runtime::Isa isa : kIsas) {
    if (isa > runtime::detected_isa()) continue;
    const runtime::ScopedIsa scope(isa);
    for (const Format from : kFormats)
      for (const Format to : kFormats)
        for (const int64_t count : {0, 1, 15, 16, 17, 131})
          for (const float factor : {1.0f, 0x1p-9f, 0.3f})
            for (const int parts : {0, 1, 2, 3}) {
              SCOPED_TRACE(std::string(runtime::name(isa)) + " " + std::to_string(count));
              ASSERT_NO_FATAL_FAILURE(expect_rescaled({from, to, count, factor, (parts & 1) != 0, (parts & 2) != 0}));
            }
  }
}

TEST(Rescale, WhatIsNotFiniteStaysSoAndIsTheAmax) {
  for (const float odd : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Array input = numbers(40, Format::kFp32, 1, 3), output(40, Format::kFp16);
    input.set(33, odd);
    const float amax = rescale(
        {.input = input.data(), .output = output.data(), .output_format = Format::kFp16, .count = 40, .factor = 0.5f});
    EXPECT_TRUE(same(amax, odd));
    EXPECT_TRUE(same(output.at(33), odd));
  }
}

TEST(Rescale, WhatFp16DoesNotHoldIsInf) {
  Array input = numbers(16, Format::kFp32, 1, 4), output(16, Format::kFp16);
  input.set(2, 1e6f);
  rescale({.input = input.data(), .output = output.data(), .output_format = Format::kFp16, .count = 16});
  EXPECT_TRUE(std::isinf(output.at(2)));
}

TEST(Rescale, AParameterInTwoPartsComesBack) {
  constexpr int64_t kCount = 1000;
  Array value = numbers(kCount, Format::kFp32, 1, 5), back(kCount, Format::kFp32);
  Array data(kCount, Format::kFp16), remainder(kCount, Format::kFp16);
  rescale({.input = value.data(),
           .output = data.data(),
           .output_format = Format::kFp16,
           .output_remainder = remainder.data(),
           .count = kCount});
  rescale({.input = data.data(),
           .input_format = Format::kFp16,
           .input_remainder = remainder.data(),
           .output = back.data(),
           .count = kCount});
  // 11 bits, 11 more, and the remainder's sign.
  for (int64_t i = 0; i < kCount; ++i)
    ASSERT_NEAR(back.at(i), value.at(i), std::fabs(value.at(i)) * 0x1p-22 + 0x1p-24 * 0x1p-11);
}

TEST(Rescale, ThreadsChangeNoBits) {
  constexpr int64_t kCount = 200'001;
  Array input = numbers(kCount, Format::kFp32, 1, 6), one(kCount, Format::kFp16), four(kCount, Format::kFp16);
  const int threads = runtime::threads();
  for (const auto& [count, output] : {std::pair<int, Array*>{1, &one}, {4, &four}}) {
    runtime::set_threads(count);
    rescale({.input = input.data(), .output = output->data(), .output_format = Format::kFp16, .count = kCount});
  }
  runtime::set_threads(threads);
  for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(one.at(i), four.at(i));
}

}  // namespace
}  // namespace plimsoll::kernels
