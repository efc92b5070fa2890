#include <benchmark/benchmark.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "plimsoll/kernels/rescale/rescale.h"
#include "plimsoll/kernels/stream_bench.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

void rescale_bench(benchmark::State& state, Format from, Format to) {
  const int64_t count = state.range(0), read = count * format::bytes(from), written = count * format::bytes(to);
  const std::vector<uint8_t> input(static_cast<size_t>(read), 0x3c);
  std::vector<uint8_t> output(static_cast<size_t>(written));
  bench::run(state, {input.data(), read, output.data(), written}, count, [&] {
    benchmark::DoNotOptimize(rescale({.input = input.data(),
                                      .input_format = from,
                                      .output = output.data(),
                                      .output_format = to,
                                      .count = count,
                                      .factor = 0.25f}));
  });
}

// 16 Ki elements stay in the L2 cache, 32 Mi come from memory.
constexpr std::initializer_list<int64_t> kSizes = {1 << 14, 1 << 25};
const bool kRegistered[] = {
    bench::add("rescale/fp16_fp32", kSizes, rescale_bench, Format::kFp16, Format::kFp32),
    bench::add("rescale/fp32_fp16", kSizes, rescale_bench, Format::kFp32, Format::kFp16),
    bench::add("rescale/fp16_fp16", kSizes, rescale_bench, Format::kFp16, Format::kFp16),
};

}  // namespace
}  // namespace plimsoll::kernels
