#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "plimsoll/kernels/adam16/adam16.h"
#include "plimsoll/kernels/bench_data.h"
#include "plimsoll/kernels/stream_bench.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

// Against a pass that reads the gradient and rewrites the weight and both moments where they stand, a block at a time.
void step_bench(benchmark::State& state, Format format) {
  const int64_t count = state.range(0), bytes = count * format::bytes(format);
  const std::vector<uint8_t> grad = bench::random_elements(format, count);
  std::vector<uint8_t> weight = grad, moment1 = grad, moment2(static_cast<size_t>(bytes));
  const auto plain = [&] {
    constexpr int64_t kBlock = 8192;  // bytes
    runtime::parallel_for(bytes, kBlock, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; at += kBlock) {
        const int64_t length = std::min(kBlock, end - at);
        read_memory(grad.data() + at, length);
        for (std::vector<uint8_t>* array : {&weight, &moment1, &moment2}) rewrite_memory(array->data() + at, length);
      }
    });
  };
  const auto step = [&] {
    adam16({.format = format,
            .weight = weight.data(),
            .grad = grad.data(),
            .moment1 = moment1.data(),
            .moment2 = moment2.data(),
            .count = count});
  };
  bench::run(state, 7 * bytes, step, plain);
}

constexpr std::initializer_list<int64_t> kSizes = {1 << 14, 1 << 24};
const bool kRegistered[] = {
    bench::add("adam16/bf16", kSizes, step_bench, Format::kBf16),
    bench::add("adam16/fp16", kSizes, step_bench, Format::kFp16),
};

}  // namespace
}  // namespace plimsoll::kernels
