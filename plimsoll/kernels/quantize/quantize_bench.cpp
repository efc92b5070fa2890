#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <vector>

#include "plimsoll/format/codec.h"
#include "plimsoll/kernels/quantize/quantize.h"
#include "plimsoll/kernels/quantize/quantize_dgelu.h"
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
        x(static_cast<size_t>(x_bytes)),
        codes(static_cast<size_t>(rows * kCols)),
        transposed(codes.size()),
        scale(codes.size() / 32) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < codes.size(); ++i) {
      const uint32_t code = format::encode(format, normal(random) * 8.0f);
      const size_t width = static_cast<size_t>(format::bytes(format));
      __builtin_memcpy(&x[i * width], &code, width);
    }
  }
  bench::Stream stream() { return {x.data(), x_bytes, codes.data(), rows * kCols}; }
  int64_t elements() const { return rows * kCols; }

  int64_t rows, x_bytes;
  std::vector<uint8_t> x, codes, transposed;
  std::vector<float> scale;
};

QuantizeTensor tensor(Buffers& buffers, Format x_format) {
  return {.x = buffers.x.data(),
          .x_format = x_format,
          .rows = buffers.rows,
          .cols = kCols,
          .x_stride = kCols,
          .codes = buffers.codes.data(),
          .codes_stride = kCols,
          .inv_scale = 1.5f};
}

void amax_bench(benchmark::State& state, Format x_format) {
  Buffers buffers(x_format, state.range(0));
  bench::Stream stream = buffers.stream();
  stream.output = nullptr;
  stream.output_bytes = 0;
  bench::run(state, stream, buffers.elements(), [&] {
    float result = amax({buffers.x.data(), x_format, buffers.rows, kCols, kCols});
    benchmark::DoNotOptimize(result);
  });
}

void tensor_bench(benchmark::State& state, Format x_format, Format format) {
  Buffers buffers(x_format, state.range(0));
  QuantizeTensor args = tensor(buffers, x_format);
  args.format = format;
  bench::run(state, buffers.stream(), buffers.elements(), [&] { quantize_tensor(args); });
}

void transpose_bench(benchmark::State& state, Format x_format, bool with_sum) {
  Buffers buffers(x_format, state.range(0));
  std::vector<float> column_sum(kCols);
  QuantizeTensor args = tensor(buffers, x_format);
  args.transposed = buffers.transposed.data();
  args.transposed_stride = buffers.rows;
  args.column_sum = with_sum ? column_sum.data() : nullptr;
  bench::run(state, buffers.stream(), buffers.elements(), [&] { quantize_tensor(args); });
}

void stochastic_bench(benchmark::State& state, Format x_format) {
  Buffers buffers(x_format, state.range(0));
  const runtime::Philox random = {.seed = 1, .step = 2};
  QuantizeTensor args = tensor(buffers, x_format);
  args.random = &random;
  bench::run(state, buffers.stream(), buffers.elements(), [&] { quantize_tensor(args); });
}

void blocks_bench(benchmark::State& state, Format x_format, int64_t block_rows, int64_t block_cols,
                  Format scale_format) {
  Buffers buffers(x_format, state.range(0));
  const QuantizeBlocks args = {.x = buffers.x.data(),
                               .x_format = x_format,
                               .rows = buffers.rows,
                               .cols = kCols,
                               .x_stride = kCols,
                               .codes = buffers.codes.data(),
                               .codes_stride = kCols,
                               .block_rows = block_rows,
                               .block_cols = block_cols,
                               .scale = buffers.scale.data(),
                               .scale_format = scale_format,
                               .scale_stride = block_cols > 0 ? kCols / block_cols : 1};
  bench::run(state, buffers.stream(), buffers.elements(), [&] { quantize_blocks(args); });
}

void dgelu_bench(benchmark::State& state, Format x_format) {
  Buffers buffers(x_format, state.range(0)), grad(x_format, state.range(0));
  const QuantizeDgelu args = {.grad = grad.x.data(),
                              .pre_activation = buffers.x.data(),
                              .x_format = x_format,
                              .rows = buffers.rows,
                              .cols = kCols,
                              .grad_stride = kCols,
                              .pre_activation_stride = kCols,
                              .codes = buffers.codes.data(),
                              .codes_stride = kCols};
  bench::run(state, buffers.stream(), buffers.elements(), [&] { quantize_dgelu(args); });
}

#define PLIMSOLL_ROWS ->Arg(64)->Arg(16384)->UseManualTime()->MinTime(0.2)
BENCHMARK_CAPTURE(amax_bench, fp32, Format::kFp32) PLIMSOLL_ROWS;
BENCHMARK_CAPTURE(amax_bench, bf16, Format::kBf16) PLIMSOLL_ROWS;
BENCHMARK_CAPTURE(tensor_bench, fp32_e4m3, Format::kFp32, Format::kE4m3) PLIMSOLL_ROWS;
BENCHMARK_CAPTURE(tensor_bench, bf16_e4m3, Format::kBf16, Format::kE4m3) PLIMSOLL_ROWS;
BENCHMARK_CAPTURE(tensor_bench, bf16_e5m2, Format::kBf16, Format::kE5m2) PLIMSOLL_ROWS;
BENCHMARK_CAPTURE(transpose_bench, bf16, Format::kBf16, false) PLIMSOLL_ROWS;
BENCHMARK_CAPTURE(transpose_bench, bf16_dbias, Format::kBf16, true) PLIMSOLL_ROWS;
BENCHMARK_CAPTURE(stochastic_bench, bf16, Format::kBf16) PLIMSOLL_ROWS;
BENCHMARK_CAPTURE(blocks_bench, bf16_row, Format::kBf16, 1, 0, Format::kFp32) PLIMSOLL_ROWS;
BENCHMARK_CAPTURE(blocks_bench, bf16_1x128, Format::kBf16, 1, 128, Format::kFp32) PLIMSOLL_ROWS;
BENCHMARK_CAPTURE(blocks_bench, bf16_128x128, Format::kBf16, 128, 128, Format::kFp32) PLIMSOLL_ROWS;
BENCHMARK_CAPTURE(blocks_bench, bf16_mx, Format::kBf16, 1, 32, Format::kE8m0) PLIMSOLL_ROWS;
BENCHMARK_CAPTURE(blocks_bench, bf16_mx_columns, Format::kBf16, 32, 1, Format::kE8m0) PLIMSOLL_ROWS;
BENCHMARK_CAPTURE(dgelu_bench, bf16, Format::kBf16) PLIMSOLL_ROWS;

}  // namespace
}  // namespace plimsoll::kernels
