#include <benchmark/benchmark.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "plimsoll/kernels/dequantize/dequantize.h"
#include "plimsoll/kernels/stream_bench.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

// [rows, 4096] codes: 64 rows stay in the L2 cache, 16384 come from memory.
constexpr int64_t kCols = 4096;

void dequantize_bench(benchmark::State& state, Format format, Format output_format, int64_t block_cols,
                      Format scale_format) {
  const int64_t rows = state.range(0);
  std::vector<uint8_t> codes(static_cast<size_t>(rows * kCols));
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 2654435761u >> 24);
  const int64_t output_bytes = rows * kCols * format::bytes(output_format);
  std::vector<uint8_t> output(static_cast<size_t>(output_bytes)), e8m0(codes.size() / 32, 120);
  const std::vector<float> fp32(e8m0.size(), 0.37f);
  const bool is_e8m0 = scale_format == Format::kE8m0;
  const Dequantize args = {.codes = codes.data(),
                           .format = format,
                           .rows = rows,
                           .cols = kCols,
                           .codes_stride = kCols,
                           .scale = {.data = is_e8m0 ? static_cast<const void*>(e8m0.data()) : fp32.data(),
                                     .format = scale_format,
                                     .block_rows = block_cols > 0 ? 1 : 0,
                                     .block_cols = block_cols,
                                     .row_stride = block_cols > 0 ? kCols / block_cols : 0,
                                     .col_stride = 1},
                           .output = output.data(),
                           .output_format = output_format,
                           .output_stride = kCols};
  bench::run(state, {codes.data(), rows * kCols, output.data(), output_bytes}, rows * kCols, [&] { dequantize(args); });
}

// E2M1 codes; block scales beside them are not counted.
void dequantize_e2m1_bench(benchmark::State& state, Format output_format, Format scale_format) {
  const int64_t rows = state.range(0), block = scale_format == Format::kE4m3 ? 16 : 32;
  std::vector<uint8_t> codes(static_cast<size_t>(rows * kCols / 2));
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 2654435761u >> 24);
  const int64_t output_bytes = rows * kCols * format::bytes(output_format);
  std::vector<uint8_t> output(static_cast<size_t>(output_bytes));
  const std::vector<uint8_t> scales(static_cast<size_t>(rows * kCols / block),
                                    scale_format == Format::kE4m3 ? 56 : 120);
  const float tensor_scale = 0.37f;
  const Dequantize args = {.codes = codes.data(),
                           .format = Format::kE2m1,
                           .rows = rows,
                           .cols = kCols,
                           .codes_stride = kCols,
                           .scale = {.data = scales.data(),
                                     .format = scale_format,
                                     .block_rows = 1,
                                     .block_cols = block,
                                     .row_stride = kCols / block,
                                     .col_stride = 1,
                                     .tensor = &tensor_scale},
                           .output = output.data(),
                           .output_format = output_format,
                           .output_stride = kCols};
  bench::run(state, {codes.data(), rows * kCols / 2, output.data(), output_bytes}, rows * kCols,
             [&] { dequantize(args); });
}

constexpr std::initializer_list<int64_t> kSizes = {64, 16384};
const bool kRegistered[] = {
    bench::add("dequantize/e4m3_bf16", kSizes, dequantize_bench, Format::kE4m3, Format::kBf16, 0, Format::kFp32),
    bench::add("dequantize/e4m3_fp32", kSizes, dequantize_bench, Format::kE4m3, Format::kFp32, 0, Format::kFp32),
    bench::add("dequantize/e5m2_bf16", kSizes, dequantize_bench, Format::kE5m2, Format::kBf16, 0, Format::kFp32),
    bench::add("dequantize/e4m3_bf16_1x128", kSizes, dequantize_bench, Format::kE4m3, Format::kBf16, 128,
               Format::kFp32),
    bench::add("dequantize/e4m3_bf16_mx", kSizes, dequantize_bench, Format::kE4m3, Format::kBf16, 32, Format::kE8m0),
    bench::add("dequantize/nvfp4_bf16", kSizes, dequantize_e2m1_bench, Format::kBf16, Format::kE4m3),
    bench::add("dequantize/mxfp4_bf16", kSizes, dequantize_e2m1_bench, Format::kBf16, Format::kE8m0),
};

}  // namespace
}  // namespace plimsoll::kernels
