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

struct Array {
  int64_t bytes;  // an element
  std::vector<uint8_t> memory;
  Array(int64_t size, int64_t count) : bytes(size), memory(static_cast<size_t>(size * count)) {}
  void* data() { return memory.empty() ? nullptr : memory.data(); }
};

// Against a pass that reads the gradient and rewrites weight and states where they stand, a block at a time. FP32 weights
// have FP32 gradients, BF16 ones BF16.
void step_bench(benchmark::State& state, StateKind states, Weights weights) {
  const int64_t count = state.range(0), scales = count / kStateGroup;
  const bool has_master = weights == Weights::kFp32 || weights == Weights::kMasters,
             is_wide = weights == Weights::kFp32;
  const int64_t moment = states == StateKind::kFp32 ? 4 : states == StateKind::kBf16 ? 2 : 1;
  Array grad(is_wide ? 4 : 2, count), master(has_master ? 4 : 0, count), narrow(is_wide ? 0 : 2, count),
      correction(weights == Weights::kSplit ? 1 : 0, count), moment1(moment, count), moment2(moment, count);
  std::vector<uint16_t> scale1(static_cast<size_t>(scales)), scale2(scale1);
  // 0.0115 in BF16 twice over, or nearly that in FP32.
  std::fill_n(reinterpret_cast<uint16_t*>(grad.memory.data()), grad.memory.size() / 2, uint16_t{0x3c3c});
  const auto plain = [&] {
    constexpr int64_t kBlock = 4096;
    runtime::parallel_for(count, kBlock, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; at += kBlock) {
        const int64_t length = std::min(kBlock, end - at);
        read_memory(grad.memory.data() + at * grad.bytes, length * grad.bytes);
        for (Array* array : {&master, &narrow, &correction, &moment1, &moment2})
          rewrite_memory(array->memory.data() + at * array->bytes, length * array->bytes);
        if (states != StateKind::k8Bit) continue;
        rewrite_memory(scale1.data() + at / kStateGroup, length / kStateGroup * 2);
        rewrite_memory(scale2.data() + at / kStateGroup, length / kStateGroup * 2);
      }
    });
  };
  const auto step = [&] {
    benchmark::DoNotOptimize(adamw({.master = static_cast<float*>(master.data()),
                                    .narrow = narrow.data(),
                                    .correction = static_cast<int8_t*>(correction.data()),
                                    .grad = grad.data(),
                                    .grad_format = is_wide ? Format::kFp32 : Format::kBf16,
                                    .states = states,
                                    .moment1 = moment1.data(),
                                    .moment2 = moment2.data(),
                                    .scale1 = scale1.data(),
                                    .scale2 = scale2.data(),
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
