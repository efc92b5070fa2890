#include <benchmark/benchmark.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "plimsoll/kernels/dropout/dropout.h"
#include "plimsoll/kernels/stream_bench.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

void dropout_bench(benchmark::State& state, Format format) {
  const int64_t count = state.range(0), bytes = count * format::bytes(format);
  const std::vector<uint8_t> input(static_cast<size_t>(bytes), 0x3c);
  std::vector<uint8_t> output(static_cast<size_t>(bytes));
  bench::run(state, {input.data(), bytes, output.data(), bytes}, count, [&] {
    dropout({.x = input.data(),
             .format = format,
             .y = output.data(),
             .count = count,
             .words = {.seed = 1, .step = 2},
             .probability = 0.05});
    benchmark::DoNotOptimize(output.data());
  });
}

// 16 Ki elements stay in the L2 cache, 32 Mi come from memory.
constexpr std::initializer_list<int64_t> kSizes = {1 << 14, 1 << 25};
const bool kRegistered[] = {
    bench::add("dropout/bf16", kSizes, dropout_bench, Format::kBf16),
    bench::add("dropout/fp32", kSizes, dropout_bench, Format::kFp32),
};

}  // namespace
}  // namespace plimsoll::kernels
