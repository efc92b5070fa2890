#include <benchmark/benchmark.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "plimsoll/kernels/pointwise/pointwise.h"
#include "plimsoll/kernels/stream_bench.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

// Operands lie one after the other, so that both are one stream to plain passes.
void pointwise_bench(benchmark::State& state, Function function, int operands) {
  const int64_t count = state.range(0), read = operands * count * 2, written = count * 2;
  const std::vector<uint16_t> input(static_cast<size_t>(operands * count), 0x3800);
  std::vector<uint16_t> output(static_cast<size_t>(count));
  bench::run(state, {input.data(), read, output.data(), written}, count, [&] {
    benchmark::DoNotOptimize(pointwise({.function = function,
                                        .a = input.data(),
                                        .b = operands == 2 ? input.data() + count : nullptr,
                                        .y = output.data(),
                                        .count = count}));
  });
}

// 16 Ki elements stay in the L2 cache, 32 Mi come from memory.
constexpr std::initializer_list<int64_t> kSizes = {1 << 14, 1 << 25};
const bool kRegistered[] = {
    bench::add("pointwise/sum", kSizes, pointwise_bench, Function::kSum, 2),
    bench::add("pointwise/product", kSizes, pointwise_bench, Function::kProduct, 2),
    bench::add("pointwise/tanh", kSizes, pointwise_bench, Function::kTanh, 1),
    bench::add("pointwise/gelu", kSizes, pointwise_bench, Function::kGelu, 1),
    bench::add("pointwise/gelu_gradient", kSizes, pointwise_bench, Function::kGeluGradient, 2),
};

}  // namespace
}  // namespace plimsoll::kernels
