#include "plimsoll/kernels/dequantize/dequantize.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "plimsoll/format/codec.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

constexpr Format kCodeFormats[] = {Format::kE4m3, Format::kE5m2};
constexpr Format kOutputFormats[] = {Format::kFp32, Format::kBf16, Format::kFp16};
constexpr runtime::Isa kIsas[] = {runtime::Isa::kPortable, runtime::Isa::kAvx2, runtime::Isa::kAvx512};

uint32_t element(const std::vector<uint8_t>& bytes, int64_t index, Format format) {
  uint32_t code = 0;
  __builtin_memcpy(&code, &bytes[static_cast<size_t>(index * format::bytes(format))],
                   static_cast<size_t>(format::bytes(format)));
  return code;
}

void expect_element(uint32_t got, float value, Format format) {
  if (std::isnan(value)) {
    ASSERT_TRUE(std::isnan(format::decode(format, got)));
  } else {
    ASSERT_EQ(got, format::encode(format, value)) << value;
  }
}

TEST(Dequantize, EveryCodeTimesScaleRoundsOnce) {
  std::vector<uint8_t> codes(256);
  for (size_t code = 0; code < 256; ++code) codes[code] = static_cast<uint8_t>(code);
  for (const runtime::Isa isa : kIsas) {
    if (isa > runtime::detected_isa()) continue;
    const runtime::ScopedIsa scope(isa);
    for (const Format format : kCodeFormats) {
      for (const Format output_format : kOutputFormats) {
        for (const float scale : {1.0f, 0.3f, -1.7f, 1e-3f, 3e-40f, 1e30f, std::nanf("")}) {
          SCOPED_TRACE(std::string(runtime::name(isa)) + " " + std::to_string(scale));
          std::vector<uint8_t> output(256 * 4);
          dequantize({.codes = codes.data(),
                      .format = format,
                      .rows = 1,
                      .cols = 256,
                      .codes_stride = 256,
                      .scale = {.data = &scale},
                      .output = output.data(),
                      .output_format = output_format,
                      .output_stride = 256});
          for (uint32_t code = 0; code < 256; ++code) {
            ASSERT_NO_FATAL_FAILURE(expect_element(element(output, code, output_format),
                                                   format::decode(format, code) * scale, output_format));
          }
        }
      }
    }
  }
}

struct Scales {
  int64_t block_rows, block_cols;
  Format format;
  bool present = true;
};

void expect_matrix(int64_t rows, int64_t cols, int64_t padding, const Scales& scales) {
  std::mt19937 random(static_cast<uint32_t>(rows * 31 + cols));
  const int64_t codes_stride = cols + padding, output_stride = cols + 2 * padding;
  std::vector<uint8_t> codes(static_cast<size_t>(rows * codes_stride + 1));
  for (uint8_t& code : codes) code = static_cast<uint8_t>(random());
  const int64_t height = scales.block_rows > 0 ? scales.block_rows : std::max<int64_t>(rows, 1);
  const int64_t width = scales.block_cols > 0 ? scales.block_cols : std::max<int64_t>(cols, 1);
  // Scales stand transposed, with a gap between columns.
  const int64_t col_stride = (rows + height - 1) / height + 1;
  std::vector<float> fp32(static_cast<size_t>((cols / width + 1) * col_stride));
  std::vector<uint8_t> e8m0(fp32.size());
  for (size_t i = 0; i < fp32.size(); ++i) {
    e8m0[i] = static_cast<uint8_t>(110 + random() % 30);
    fp32[i] = static_cast<float>(1 + random() % 1000) / 700.0f;
  }
  ScaleView view = {.format = scales.format,
                    .block_rows = scales.block_rows,
                    .block_cols = scales.block_cols,
                    .row_stride = 1,
                    .col_stride = col_stride};
  if (scales.present) view.data = scales.format == Format::kE8m0 ? static_cast<const void*>(e8m0.data()) : fp32.data();
  std::vector<uint8_t> output(static_cast<size_t>((rows * output_stride + 1) * 2), 0xee);
  dequantize({.codes = codes.data() + 1,
              .format = Format::kE5m2,
              .rows = rows,
              .cols = cols,
              .codes_stride = codes_stride,
              .scale = view,
              .output = output.data() + 2,
              .output_format = Format::kBf16,
              .output_stride = output_stride});
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < output_stride; ++col) {
      const uint32_t got = element(output, row * output_stride + col + 1, Format::kBf16);
      if (col >= cols) {
        ASSERT_EQ(got, 0xeeeeu);
        continue;
      }
      const auto index = static_cast<size_t>(row / height + col / width * col_stride);
      const float stored = scales.format == Format::kE8m0 ? format::E8m0::decode(e8m0[index]) : fp32[index];
      const float scale = scales.present ? stored : 1.0f;
      const uint8_t code = codes[static_cast<size_t>(row * codes_stride + col + 1)];
      ASSERT_NO_FATAL_FAILURE(expect_element(got, format::decode(Format::kE5m2, code) * scale, Format::kBf16))
          << row << ", " << col;
    }
  }
}

constexpr Scales kScales[] = {{0, 0, Format::kFp32, false}, {0, 0, Format::kFp32},   {1, 0, Format::kFp32},
                              {0, 1, Format::kFp32},        {1, 128, Format::kFp32}, {128, 128, Format::kFp32},
                              {1, 32, Format::kE8m0},       {32, 1, Format::kE8m0},  {7, 5, Format::kFp32},
                              {1, 4096, Format::kFp32}};

TEST(Dequantize, FindsTheScaleOfEveryElement) {
  for (const runtime::Isa isa : kIsas) {
    if (isa > runtime::detected_isa()) continue;
    const runtime::ScopedIsa scope(isa);
    for (const int64_t rows : {0, 1, 3, 130}) {
      for (const int64_t cols : {0, 1, 15, 16, 17, 33, 2049}) {
        for (const int64_t padding : {0, 3}) {
          for (const Scales& scales : kScales) {
            SCOPED_TRACE(std::string(runtime::name(isa)) + " " + std::to_string(rows) + " x " + std::to_string(cols) +
                         " in " + std::to_string(scales.block_rows) + " x " + std::to_string(scales.block_cols));
            ASSERT_NO_FATAL_FAILURE(expect_matrix(rows, cols, padding, scales));
          }
        }
      }
    }
  }
}

TEST(Dequantize, IsTheSameForAnyThreadCount) {
  const int before = runtime::threads();
  for (const int threads : {1, 2, 3, 7}) {
    runtime::set_threads(threads);
    for (const Scales& scales : kScales) ASSERT_NO_FATAL_FAILURE(expect_matrix(65, 5003, 1, scales)) << threads;
  }
  runtime::set_threads(before);
}

}  // namespace
}  // namespace plimsoll::kernels
