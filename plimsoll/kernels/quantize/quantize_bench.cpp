#include <benchmark/benchmark.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "plimsoll/kernels/bench_data.h"
#include "plimsoll/kernels/quantize/quantize.h"
#include "plimsoll/kernels/stream_bench.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

// [rows, 4096] activations: 64 rows stay in the L2 cache, 16384 come from memory.
constexpr int64_t kCols = 4096;

struct Buffers {
  Buffers(Format format, int64_t row_count)
      : rows(row_count),
        x_bytes(rows * kCols * format::bytes(format)),
        x(bench::random_elements(format, rows * kCols, /*deviation=*/8.0f)),
        storage(static_cast<size_t>(rows * kCols + 64)),
        codes(bench::first_line(storage)),
        scale(storage.size() / 32) {}
  // Matrices one after another, read (or written) as one stream.
  bench::Stream stream(int64_t read, int64_t written) {
    return {x.data(), read * x_bytes, codes, written * rows * kCols};
  }
  int64_t elements() const { return rows * kCols; }

  int64_t rows, x_bytes;  // x_bytes: of one matrix
  std::vector<uint8_t> x, storage;
  uint8_t* codes;  // in storage
  std::vector<float> scale;
  float tensor_scale = 0.6f, amax = 0;
};

QuantizeTensor tensor(Buffers& buffers, Format x_format) {
  return {.x = buffers.x.data(),
          .x_format = x_format,
          .rows = buffers.rows,
          .cols = kCols,
          .x_stride = kCols,
          .codes = buffers.codes,
          .codes_stride = kCols,
          .scale = &buffers.tensor_scale,
          .amax = &buffers.amax};
}

void amax_bench(benchmark::State& state, Format x_format) {
  Buffers buffers(x_format, state.range(0));
  bench::run(state, {buffers.x.data(), buffers.x_bytes, nullptr, 0}, buffers.elements(), [&] {
    amax({buffers.x.data(), x_format, buffers.rows, kCols, kCols, &buffers.amax});
  });
}

void tensor_bench(benchmark::State& state, Format x_format, Format format) {
  Buffers buffers(x_format, state.range(0));
  QuantizeTensor args = tensor(buffers, x_format);
  args.format = format;
  bench::run(state, buffers.stream(1, 1), buffers.elements(), [&] { quantize_tensor(args); });
}

void column_sum_bench(benchmark::State& state, Format x_format) {
  Buffers buffers(x_format, state.range(0));
  std::vector<float> column_sum(kCols);
  QuantizeTensor args = tensor(buffers, x_format);
  args.column_sum = column_sum.data();
  bench::run(state, buffers.stream(1, 1), buffers.elements(), [&] { quantize_tensor(args); });
}

void statistic_bench(benchmark::State& state, Format x_format) {
  Buffers buffers(x_format, state.range(0));
  QuantizeStatistic statistic;
  QuantizeTensor args = tensor(buffers, x_format);
  args.statistic = &statistic;
  bench::run(state, buffers.stream(1, 1), buffers.elements(), [&] { quantize_tensor(args); });
}

void blocks_bench(benchmark::State& state, Format x_format, int64_t block_rows, int64_t block_cols,
                  Format scale_format) {
  Buffers buffers(x_format, state.range(0));
  const QuantizeBlocks args = {.x = buffers.x.data(),
                               .x_format = x_format,
                               .rows = buffers.rows,
                               .cols = kCols,
                               .x_stride = kCols,
                               .codes = buffers.codes,
                               .codes_stride = kCols,
                               .block_rows = block_rows,
                               .block_cols = block_cols,
                               .scale = buffers.scale.data(),
                               .scale_format = scale_format,
                               .scale_stride = block_cols > 0 ? kCols / block_cols : 1,
                               .amax = &buffers.amax};
  bench::run(state, buffers.stream(1, 1), buffers.elements(), [&] { quantize_blocks(args); });
}

constexpr std::initializer_list<int64_t> kSizes = {64, 16384};
const bool kRegistered[] = {
    bench::add("quantize/amax/fp32", kSizes, amax_bench, Format::kFp32),
    bench::add("quantize/amax/bf16", kSizes, amax_bench, Format::kBf16),
    bench::add("quantize/amax/fp16", kSizes, amax_bench, Format::kFp16),
    bench::add("quantize/tensor/fp32_e4m3", kSizes, tensor_bench, Format::kFp32, Format::kE4m3),
    bench::add("quantize/tensor/bf16_e4m3", kSizes, tensor_bench, Format::kBf16, Format::kE4m3),
    bench::add("quantize/tensor/bf16_e5m2", kSizes, tensor_bench, Format::kBf16, Format::kE5m2),
    bench::add("quantize/column_sum/bf16", kSizes, column_sum_bench, Format::kBf16),
    bench::add("quantize/statistic/fp32", kSizes, statistic_bench, Format::kFp32),
    bench::add("quantize/statistic/bf16", kSizes, statistic_bench, Format::kBf16),
    bench::add("quantize/blocks/bf16_row", kSizes, blocks_bench, Format::kBf16, 1, 0, Format::kFp32),
    bench::add("quantize/blocks/bf16_1x128", kSizes, blocks_bench, Format::kBf16, 1, 128, Format::kFp32),
    bench::add("quantize/blocks/bf16_128x128", kSizes, blocks_bench, Format::kBf16, 128, 128, Format::kFp32),
    bench::add("quantize/blocks/bf16_mx", kSizes, blocks_bench, Format::kBf16, 1, 32, Format::kE8m0),
    bench::add("quantize/blocks/bf16_mx_columns", kSizes, blocks_bench, Format::kBf16, 32, 1, Format::kE8m0),
};

}  // namespace
}  // namespace plimsoll::kernels
