#include <benchmark/benchmark.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "plimsoll/kernels/gradient/gradient.h"
#include "plimsoll/kernels/stream_bench.h"

namespace plimsoll::kernels {
namespace {

void pass_bench(benchmark::State& state, bool write) {
  std::vector<float> x(static_cast<size_t>(state.range(0)), 1e-3f);
  const GradientTensor tensor{x.data(), format::Format::kFp32, state.range(0)};
  const int64_t bytes = state.range(0) * static_cast<int64_t>(sizeof(float));
  bench::run(state, {x.data(), bytes, write ? x.data() : nullptr, write ? bytes : 0}, state.range(0), [&] {
    benchmark::DoNotOptimize(gradient_pass({.tensors = &tensor, .tensor_count = 1, .write = write}).sum_of_squares);
  });
}

constexpr std::initializer_list<int64_t> kSizes = {1 << 14, 1 << 25};
const bool kRegistered[] = {
    bench::add("gradient/read", kSizes, pass_bench, false),
    bench::add("gradient/scale_in_place", kSizes, pass_bench, true),
};

}  // namespace
}  // namespace plimsoll::kernels
