#include <benchmark/benchmark.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "plimsoll/kernels/bench_data.h"
#include "plimsoll/kernels/norm/norm.h"
#include "plimsoll/kernels/stream_bench.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

// [rows, 1024]: 256 rows stay in the L2 caches, 32768 come from memory.
constexpr int64_t kCols = 1024;

// Matrices of one format one after another, so that the plain loop reads (or writes) them as one stream.
struct Matrices {
  Matrices(Format format, int64_t row_count, int64_t count)
      : one(row_count * kCols * format::bytes(format)),
        bytes(bench::random_elements(format, row_count * kCols * count)) {}
  void* at(int64_t index) { return bytes.data() + index * one; }
  int64_t size() const { return static_cast<int64_t>(bytes.size()); }

  int64_t one;
  std::vector<uint8_t> bytes;
};

void forward_bench(benchmark::State& state, NormKind kind, Format x_format, Format y_format, bool residual) {
  const int64_t rows = state.range(0);
  Matrices in(x_format, rows, residual ? 2 : 1), sum(x_format, rows, residual ? 1 : 0), y(y_format, rows, 1);
  std::vector<float> weight(kCols, 1.0f), bias(kCols, 0.1f), mean(static_cast<size_t>(rows)), rstd(mean);
  const float scale = 0x1p-4f;
  float amax = 0;
  const NormForward args = {.kind = kind,
                            .rows = rows,
                            .cols = kCols,
                            .x = in.at(0),
                            .residual = residual ? in.at(1) : nullptr,
                            .sum = residual ? sum.at(0) : nullptr,
                            .x_format = x_format,
                            .weight = weight.data(),
                            .bias = kind == NormKind::kLayerNorm ? bias.data() : nullptr,
                            .y = y.at(0),
                            .y_format = y_format,
                            .scale = &scale,
                            .amax = &amax,
                            .mean = kind == NormKind::kLayerNorm ? mean.data() : nullptr,
                            .rstd = rstd.data()};
  // The sum is a stream of the size of y or larger; the plain loop writes them as one.
  std::vector<uint8_t> written(static_cast<size_t>(sum.size() + y.size()));
  bench::run(state, {in.at(0), in.size(), written.data(), sum.size() + y.size()}, rows * kCols,
             [&] { norm_forward(args); });
}

void backward_bench(benchmark::State& state, NormKind kind, Format format) {
  const int64_t rows = state.range(0);
  Matrices in(format, rows, 2), dx(format, rows, 1);
  std::vector<float> weight(kCols, 1.0f), dweight(kCols), dbias(kCols);
  std::vector<float> mean(static_cast<size_t>(rows), 0.0f), rstd(static_cast<size_t>(rows), 1.0f);
  const NormBackward args = {.kind = kind,
                             .rows = rows,
                             .cols = kCols,
                             .dy = in.at(0),
                             .dy_format = format,
                             .x = in.at(1),
                             .x_format = format,
                             .weight = weight.data(),
                             .mean = mean.data(),
                             .rstd = rstd.data(),
                             .dx = dx.at(0),
                             .dx_format = format,
                             .dweight = dweight.data(),
                             .dbias = kind == NormKind::kLayerNorm ? dbias.data() : nullptr};
  bench::run(state, {in.at(0), in.size(), dx.at(0), dx.size()}, rows * kCols, [&] { norm_backward(args); });
}

constexpr std::initializer_list<int64_t> kSizes = {256, 32768};
constexpr NormKind kLayer = NormKind::kLayerNorm, kRms = NormKind::kRmsNorm;
const bool kRegistered[] = {
    bench::add("norm/forward/layer_fp32_fp32", kSizes, forward_bench, kLayer, Format::kFp32, Format::kFp32, false),
    bench::add("norm/forward/layer_bf16_bf16", kSizes, forward_bench, kLayer, Format::kBf16, Format::kBf16, false),
    bench::add("norm/forward/layer_bf16_e4m3", kSizes, forward_bench, kLayer, Format::kBf16, Format::kE4m3, false),
    bench::add("norm/forward/layer_residual_bf16_e4m3", kSizes, forward_bench, kLayer, Format::kBf16, Format::kE4m3,
               true),
    bench::add("norm/forward/rms_bf16_e4m3", kSizes, forward_bench, kRms, Format::kBf16, Format::kE4m3, false),
    bench::add("norm/backward/layer_fp32", kSizes, backward_bench, kLayer, Format::kFp32),
    bench::add("norm/backward/layer_bf16", kSizes, backward_bench, kLayer, Format::kBf16),
    bench::add("norm/backward/rms_bf16", kSizes, backward_bench, kRms, Format::kBf16),
};

}  // namespace
}  // namespace plimsoll::kernels
