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

enum class Weights { kFp32, kMasters, kSplit, kAlone };

// Arrays begin at a line of the cache, as torch's tensors do.
struct alignas(64) Line {
  uint8_t bytes[64];
};
struct Array {
  int64_t bytes;  // an element
  std::vector<Line> memory;
  Array(int64_t size, int64_t count) : bytes(size), memory(static_cast<size_t>(size * count / 64)) {}
  uint8_t* data() { return memory.empty() ? nullptr : memory.front().bytes; }
};

// Against a pass that reads the gradient and rewrites weight and states where they stand, a block at a time. FP32 weights
// have FP32 gradients, BF16 ones BF16.
void step_bench(benchmark::State& state, StateKind states, Weights weights) {
  const int64_t count = state.range(0), scales = count / kStateGroup;
  const bool has_master = weights == Weights::kFp32 || weights == Weights::kMasters,
             is_wide = weights == Weights::kFp32;
  const int64_t moment = states == StateKind::kFp32 ? 4 : states == StateKind::kBf16 ? 2 : 1;
  Array grad(is_wide ? 4 : 2, count), master(has_master ? 4 : 0, count), narrow(is_wide ? 0 : 2, count),
      correction(weights == Weights::kSplit ? 1 : 0, count), moment1(moment, count), moment2(moment, count),
      scale1(2, scales), scale2(2, scales);
  // 0.0115 in BF16 twice over, or nearly that in FP32.
  std::fill_n(reinterpret_cast<uint16_t*>(grad.data()), grad.bytes * count / 2, uint16_t{0x3c3c});
  const auto plain = [&] {
    constexpr int64_t kBlock = 4096;
    runtime::parallel_for(count, kBlock, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; at += kBlock) {
        const int64_t length = std::min(kBlock, end - at);
        read_memory(grad.data() + at * grad.bytes, length * grad.bytes);
        for (Array* array : {&master, &narrow, &correction, &moment1, &moment2})
          rewrite_memory(array->data() + at * array->bytes, length * array->bytes);
        if (states != StateKind::k8Bit) continue;
        for (Array* array : {&scale1, &scale2})
          rewrite_memory(array->data() + at / kStateGroup * 2, length / kStateGroup * 2);
      }
    });
  };
  const auto step = [&] {
    benchmark::DoNotOptimize(adamw({.master = reinterpret_cast<float*>(master.data()),
                                    .narrow = narrow.data(),
                                    .correction = reinterpret_cast<int8_t*>(correction.data()),
                                    .grad = grad.data(),
                                    .grad_format = is_wide ? Format::kFp32 : Format::kBf16,
                                    .states = states,
                                    .moment1 = moment1.data(),
                                    .moment2 = moment2.data(),
                                    .scale1 = reinterpret_cast<uint16_t*>(scale1.data()),
                                    .scale2 = reinterpret_cast<uint16_t*>(scale2.data()),
                                    .count = count}));
  };
  int64_t bytes = grad.bytes * count + (states == StateKind::k8Bit ? 2 * 2 * 2 * scales : 0);
  for (const Array* array : {&master, &narrow, &correction, &moment1, &moment2}) bytes += 2 * array->bytes * count;
  bench::run(state, bytes, step, plain);
}

constexpr std::initializer_list<int64_t> kSizes = {1 << 14, 1 << 24};
const bool kRegistered[] = {
    bench::add("adamw/fp32_moments", kSizes, step_bench, StateKind::kFp32, Weights::kFp32),
    bench::add("adamw/bf16_moments", kSizes, step_bench, StateKind::kBf16, Weights::kFp32),
    bench::add("adamw/8bit_moments", kSizes, step_bench, StateKind::k8Bit, Weights::kFp32),
    bench::add("adamw/8bit_masters", kSizes, step_bench, StateKind::k8Bit, Weights::kMasters),
    bench::add("adamw/fp32_split", kSizes, step_bench, StateKind::kFp32, Weights::kSplit),
    bench::add("adamw/bf16_split", kSizes, step_bench, StateKind::kBf16, Weights::kSplit),
    bench::add("adamw/bf16_alone", kSizes, step_bench, StateKind::kBf16, Weights::kAlone),
    bench::add("adamw/8bit_split", kSizes, step_bench, StateKind::k8Bit, Weights::kSplit),
    bench::add("adamw/8bit_alone", kSizes, step_bench, StateKind::k8Bit, Weights::kAlone),
};

}  // namespace
}  // namespace plimsoll::kernels
