// "share": the time of a plain loop over the same buffer, divided by the time of the kernel; the two take turns.
#include <benchmark/benchmark.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <vector>

#include "plimsoll/kernels/gradient/gradient.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

template <class Function>
double seconds(Function function) {
  const auto begin = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void plain_read(std::vector<float>& x) {
  std::atomic<uint32_t> all = 0;
  runtime::parallel_for(static_cast<int64_t>(x.size()), 4096, [&](int64_t begin, int64_t end) {
    uint32_t mine = 0;
    for (int64_t i = begin; i < end; ++i) mine |= std::bit_cast<uint32_t>(x[static_cast<size_t>(i)]);
    all |= mine;
  });
  benchmark::DoNotOptimize(all.load());
}

void plain_scale(std::vector<float>& x) {
  float factor = 1.0f;
  benchmark::DoNotOptimize(factor);  // a constant 1 would leave no loop
  runtime::parallel_for(static_cast<int64_t>(x.size()), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) x[static_cast<size_t>(i)] *= factor;
  });
}

template <bool kWrite>
void pass(benchmark::State& state) {
  std::vector<float> x(static_cast<size_t>(state.range(0)), 1e-3f);
  const GradientTensor tensor{x.data(), format::Format::kFp32, state.range(0)};
  double plain = 0, kernel = 0;
  for (auto _ : state) {
    plain += seconds([&] { kWrite ? plain_scale(x) : plain_read(x); });
    const double time = seconds([&] {
      benchmark::DoNotOptimize(gradient_pass({.tensors = &tensor, .tensor_count = 1, .write = kWrite}).sum_of_squares);
    });
    kernel += time;
    state.SetIterationTime(time);
  }
  const int64_t bytes = state.range(0) * static_cast<int64_t>(sizeof(float)) * (kWrite ? 2 : 1);
  state.SetBytesProcessed(state.iterations() * bytes);
  state.counters["share"] = plain / kernel;
}

BENCHMARK(pass<false>)->Name("gradient/read")->Arg(1 << 14)->Arg(1 << 25)->UseManualTime();
BENCHMARK(pass<true>)->Name("gradient/scale_in_place")->Arg(1 << 14)->Arg(1 << 25)->UseManualTime();

}  // namespace
}  // namespace plimsoll::kernels
