#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/kernels/stream_bench.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

// Against a pass that reads the gradient and rewrites weight and moments where they stand, a block at a time.
void step_bench(benchmark::State& state, Format moment_format) {
  const int64_t count = state.range(0), moment_bytes = format::bytes(moment_format);
  const auto size = static_cast<size_t>(count);
  std::vector<float> master(size, 1.0f), grad(size, 1e-3f);
  std::vector<uint8_t> moment1(size * static_cast<size_t>(moment_bytes)), moment2(moment1);
  const auto plain = [&] {
    constexpr int64_t kBlock = 4096;
    runtime::parallel_for(count, kBlock, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; at += kBlock) {
        const int64_t length = std::min(kBlock, end - at), floats = length * static_cast<int64_t>(sizeof(float));
        read_memory(grad.data() + at, floats);
        rewrite_memory(master.data() + at, floats);
        rewrite_memory(moment1.data() + at * moment_bytes, length * moment_bytes);
        rewrite_memory(moment2.data() + at * moment_bytes, length * moment_bytes);
      }
    });
  };
  const auto step = [&] {
    benchmark::DoNotOptimize(adamw({.master = master.data(),
                                    .grad = grad.data(),
                                    .moment1 = moment1.data(),
                                    .moment2 = moment2.data(),
                                    .moment_format = moment_format,
                                    .count = count}));
  };
  const int64_t bytes = count * (3 * static_cast<int64_t>(sizeof(float)) + 4 * moment_bytes);
  bench::run(state, bytes, step, plain);
}

constexpr std::initializer_list<int64_t> kSizes = {1 << 14, 1 << 24};
const bool kRegistered[] = {
    bench::add("adamw/fp32_moments", kSizes, step_bench, Format::kFp32),
    bench::add("adamw/bf16_moments", kSizes, step_bench, Format::kBf16),
};

}  // namespace
}  // namespace plimsoll::kernels
