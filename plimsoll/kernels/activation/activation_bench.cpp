#include <benchmark/benchmark.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "plimsoll/kernels/activation/activation.h"
#include "plimsoll/kernels/bench_data.h"
#include "plimsoll/kernels/stream_bench.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

// [rows, 1024] results: 256 rows stay in the L2 caches, 32768 come from memory.
constexpr int64_t kCols = 1024;
constexpr float kScale = 0x1p-4f;

void forward_bench(benchmark::State& state, Activation kind, Format x_format, Format y_format) {
  const int64_t rows = state.range(0), count = rows * kCols;
  std::vector<uint8_t> x = bench::random_elements(x_format, is_gated(kind) ? 2 * count : count);
  std::vector<uint8_t> y(static_cast<size_t>(count * format::bytes(y_format)));
  float amax = 0;
  const ActivationForward args = {.activation = kind,
                                  .rows = rows,
                                  .cols = kCols,
                                  .x = x.data(),
                                  .x_format = x_format,
                                  .y = y.data(),
                                  .y_format = y_format,
                                  .scale = &kScale,
                                  .amax = &amax};
  bench::run(state, {x.data(), static_cast<int64_t>(x.size()), y.data(), static_cast<int64_t>(y.size())}, count,
             [&] { activation_forward(args); });
}

void backward_bench(benchmark::State& state, Activation kind, Format x_format, Format dx_format, bool column_sum) {
  const int64_t rows = state.range(0), count = rows * kCols, x_count = is_gated(kind) ? 2 * count : count;
  std::vector<uint8_t> in = bench::random_elements(x_format, x_count + count);  // x, then dy
  std::vector<uint8_t> dx(static_cast<size_t>(x_count * format::bytes(dx_format)));
  std::vector<float> sum(static_cast<size_t>(2 * kCols));
  float amax = 0;
  const ActivationBackward args = {.activation = kind,
                                   .rows = rows,
                                   .cols = kCols,
                                   .x = in.data(),
                                   .x_format = x_format,
                                   .dy = in.data() + x_count * format::bytes(x_format),
                                   .dy_format = x_format,
                                   .dx = dx.data(),
                                   .dx_format = dx_format,
                                   .scale = &kScale,
                                   .amax = &amax,
                                   .column_sum = column_sum ? sum.data() : nullptr};
  bench::run(state, {in.data(), static_cast<int64_t>(in.size()), dx.data(), static_cast<int64_t>(dx.size())}, count,
             [&] { activation_backward(args); });
}

constexpr std::initializer_list<int64_t> kSizes = {256, 32768};
const bool kRegistered[] = {
    bench::add("activation/forward/gelu_fp32_fp32", kSizes, forward_bench, Activation::kGelu, Format::kFp32,
               Format::kFp32),
    bench::add("activation/forward/gelu_bf16_bf16", kSizes, forward_bench, Activation::kGelu, Format::kBf16,
               Format::kBf16),
    bench::add("activation/forward/gelu_bf16_e4m3", kSizes, forward_bench, Activation::kGelu, Format::kBf16,
               Format::kE4m3),
    bench::add("activation/forward/relu_bf16_e4m3", kSizes, forward_bench, Activation::kRelu, Format::kBf16,
               Format::kE4m3),
    bench::add("activation/forward/swiglu_bf16_e4m3", kSizes, forward_bench, Activation::kSwiglu, Format::kBf16,
               Format::kE4m3),
    bench::add("activation/backward/gelu_bf16_e5m2", kSizes, backward_bench, Activation::kGelu, Format::kBf16,
               Format::kE5m2, false),
    bench::add("activation/backward/gelu_bf16_e5m2_dbias", kSizes, backward_bench, Activation::kGelu, Format::kBf16,
               Format::kE5m2, true),
    bench::add("activation/backward/swiglu_bf16_e5m2", kSizes, backward_bench, Activation::kSwiglu, Format::kBf16,
               Format::kE5m2, false),
};

}  // namespace
}  // namespace plimsoll::kernels
