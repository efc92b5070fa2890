// "share": the time of a plain loop that reads and writes the same buffers, divided by the time of the kernel; the two
// take turns.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

template <class Function>
double seconds(Function function) {
  const auto begin = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Reads the gradient, and changes weight and moments where they stand.
template <class Moment>
void plain_loop(float* master, const float* grad, Moment* moment1, Moment* moment2, int64_t count) {
  runtime::parallel_for(count, 4096, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      master[i] += grad[i];
      moment1[i] = static_cast<Moment>(moment1[i] + Moment{1});
      moment2[i] = static_cast<Moment>(moment2[i] + Moment{1});
    }
  });
}

template <class Moment, Format kMoment>
void adamw_step(benchmark::State& state) {
  const int64_t count = state.range(0);
  const size_t size = static_cast<size_t>(count);
  std::vector<float> master(size, 1.0f), grad(size, 1e-3f);
  std::vector<Moment> moment1(size), moment2(size);
  double plain = 0, kernel = 0;
  for (auto _ : state) {
    plain += seconds([&] { plain_loop(master.data(), grad.data(), moment1.data(), moment2.data(), count); });
    // The plain loop left anything but moments; zeros keep the kernel's arithmetic on normal numbers.
    state.PauseTiming();
    std::fill(moment1.begin(), moment1.end(), Moment{});
    std::fill(moment2.begin(), moment2.end(), Moment{});
    state.ResumeTiming();
    const double time = seconds([&] {
      benchmark::DoNotOptimize(adamw({.master = master.data(),
                                      .grad = grad.data(),
                                      .moment1 = moment1.data(),
                                      .moment2 = moment2.data(),
                                      .moment_format = kMoment,
                                      .count = count}));
    });
    kernel += time;
    state.SetIterationTime(time);
  }
  const auto bytes = static_cast<int64_t>(3 * sizeof(float) + 4 * sizeof(Moment));
  state.SetBytesProcessed(state.iterations() * count * bytes);
  state.counters["share"] = plain / kernel;
}

BENCHMARK(adamw_step<float, Format::kFp32>)->Name("adamw/fp32_moments")->Arg(1 << 14)->Arg(1 << 24)->UseManualTime();
BENCHMARK(adamw_step<uint16_t, Format::kBf16>)->Name("adamw/bf16_moments")->Arg(1 << 14)->Arg(1 << 24)->UseManualTime();

}  // namespace
}  // namespace plimsoll::kernels
