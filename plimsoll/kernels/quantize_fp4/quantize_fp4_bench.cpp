#include <benchmark/benchmark.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "plimsoll/kernels/bench_data.h"
#include "plimsoll/kernels/quantize_fp4/quantize_fp4.h"
#include "plimsoll/kernels/stream_bench.h"

namespace plimsoll::kernels {
namespace {

using format::Format;
using format::Fp4Scaling;

// [rows, 4096] activations: 128 rows stay near the core, 16384 come from memory. The amax is known.
constexpr int64_t kCols = 4096;

struct Case {
  Format x_format = Format::kBf16;
  Fp4Scaling scaling = Fp4Scaling::kNvfp4;
  bool by_row = true, by_column = false, stochastic = false;
  int64_t rotation = 0;
};

struct Buffers {
  Buffers(const Case& c, int64_t row_count)
      : rows(row_count),
        x(bench::random_elements(c.x_format, rows * kCols, /*deviation=*/8.0f)),
        storage(static_cast<size_t>(rows * kCols + 64)),
        codes(bench::first_line(storage)),
        scale(static_cast<size_t>(rows * kCols / 8)) {}

  int64_t rows;
  std::vector<uint8_t> x, storage;
  uint8_t* codes;  // of both directions, in storage
  std::vector<uint8_t> scale;
  float amax = 40.0f, tensor_scale = 0;
};

void quantize_bench(benchmark::State& state, Case c) {
  Buffers buffers(c, state.range(0));
  const int64_t elements = buffers.rows * kCols;
  QuantizeFp4 args = {.x = buffers.x.data(),
                      .x_format = c.x_format,
                      .rows = buffers.rows,
                      .cols = kCols,
                      .x_stride = kCols,
                      .scaling = c.scaling};
  const Fp4Lines lines = {.rotation = {.size = c.rotation, .seed = 1},
                          .noise = {.stochastic = c.stochastic, .seed = 1},
                          .tensor_amax = &buffers.amax,
                          .tensor_scale = &buffers.tensor_scale};
  if (c.by_row) {
    args.by_row = lines;
    args.by_row.codes = buffers.codes;
    args.by_row.codes_stride = kCols / 2;
    args.by_row.scale = buffers.scale.data();
    args.by_row.scale_stride = kCols / 16;
  }
  if (c.by_column) {
    args.by_column = lines;
    args.by_column.codes = buffers.codes + elements / 2;
    args.by_column.codes_stride = buffers.rows / 2;
    args.by_column.scale = buffers.scale.data() + elements / 16;
    args.by_column.scale_stride = buffers.rows / 16;
  }
  const int64_t directions = (c.by_row ? 1 : 0) + (c.by_column ? 1 : 0);
  const int64_t first = c.by_row ? 0 : elements / 2;
  // Codes are counted, eight bytes for 16 elements; their scales, a byte more or half of one, are not.
  bench::run(state,
             {buffers.x.data(), elements * format::bytes(c.x_format), buffers.codes + first, directions * elements / 2},
             elements, [&] { quantize_fp4(args); });
}

void squares_bench(benchmark::State& state, Fp4Scaling scaling) {
  Buffers buffers({}, state.range(0));
  const int64_t elements = buffers.rows * kCols;
  const QuantizeFp4Squares args = {.x = buffers.x.data(),
                                   .x_format = Format::kBf16,
                                   .rows = buffers.rows,
                                   .cols = kCols,
                                   .x_stride = kCols,
                                   .scaling = scaling,
                                   .codes = buffers.codes,
                                   .codes_stride = kCols / 2,
                                   .transposed = buffers.codes + elements / 2,
                                   .transposed_stride = buffers.rows / 2,
                                   .scale = buffers.scale.data(),
                                   .scale_stride = kCols / 16,
                                   .tensor_amax = &buffers.amax,
                                   .tensor_scale = &buffers.tensor_scale};
  bench::run(state, {buffers.x.data(), elements * 2, buffers.codes, elements}, elements,
             [&] { quantize_fp4_squares(args); });
}

constexpr std::initializer_list<int64_t> kSizes = {128, 16384};
const bool kRegistered[] = {
    bench::add("quantize_fp4/rows/bf16", kSizes, quantize_bench, Case{}),
    bench::add("quantize_fp4/rows/fp32", kSizes, quantize_bench, Case{.x_format = Format::kFp32}),
    bench::add("quantize_fp4/rows/bf16_stochastic", kSizes, quantize_bench, Case{.stochastic = true}),
    bench::add("quantize_fp4/rows/bf16_hadamard16", kSizes, quantize_bench, Case{.rotation = 16}),
    bench::add("quantize_fp4/rows/bf16_hadamard128", kSizes, quantize_bench, Case{.rotation = 128}),
    bench::add("quantize_fp4/rows/bf16_4over6", kSizes, quantize_bench, Case{.scaling = Fp4Scaling::kFourOverSix}),
    bench::add("quantize_fp4/rows/bf16_ms_eden", kSizes, quantize_bench,
               Case{.scaling = Fp4Scaling::kMsEden, .stochastic = true, .rotation = 128}),
    bench::add("quantize_fp4/rows/bf16_mx", kSizes, quantize_bench, Case{.scaling = Fp4Scaling::kMxfp4}),
    bench::add("quantize_fp4/columns/bf16", kSizes, quantize_bench, Case{.by_row = false, .by_column = true}),
    bench::add("quantize_fp4/columns/bf16_stochastic", kSizes, quantize_bench,
               Case{.by_row = false, .by_column = true, .stochastic = true}),
    bench::add("quantize_fp4/columns/bf16_hadamard16", kSizes, quantize_bench,
               Case{.by_row = false, .by_column = true, .rotation = 16}),
    bench::add("quantize_fp4/columns/fp32_hadamard16", kSizes, quantize_bench,
               Case{.x_format = Format::kFp32, .by_row = false, .by_column = true, .rotation = 16}),
    bench::add("quantize_fp4/columns/bf16_hadamard128", kSizes, quantize_bench,
               Case{.by_row = false, .by_column = true, .rotation = 128}),
    bench::add(
        "quantize_fp4/columns/bf16_ms_eden", kSizes, quantize_bench,
        Case{.scaling = Fp4Scaling::kMsEden, .by_row = false, .by_column = true, .stochastic = true, .rotation = 128}),
    bench::add("quantize_fp4/both/bf16", kSizes, quantize_bench, Case{.by_column = true}),
    bench::add("quantize_fp4/squares/bf16", kSizes, squares_bench, Fp4Scaling::kNvfp4),
};

}  // namespace
}  // namespace plimsoll::kernels
