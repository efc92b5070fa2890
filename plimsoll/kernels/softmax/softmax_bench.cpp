#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <vector>

#include "plimsoll/format/codec.h"
#include "plimsoll/kernels/softmax/softmax.h"
#include "plimsoll/kernels/stream_bench.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

// [batch, 4, 256, 256] scores: batch 1 stays in the L2 caches, 128 come from memory.
constexpr SoftmaxShape shape_of(int64_t batch) { return {.batch = batch, .heads = 4, .queries = 256, .keys = 256}; }

struct Scores {
  Scores(Format format, int64_t batch, int64_t matrices)
      : count(batch * 4 * 256 * 256),
        one(count * format::bytes(format)),
        in(static_cast<size_t>(one * matrices)),
        out(static_cast<size_t>(one)) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const size_t width = static_cast<size_t>(format::bytes(format));
    for (size_t i = 0; i < in.size(); i += width) {
      const uint32_t code = format::encode(format, normal(random));
      __builtin_memcpy(&in[i], &code, width);
    }
  }
  bench::Stream stream() { return {in.data(), static_cast<int64_t>(in.size()), out.data(), one}; }

  int64_t count, one;
  std::vector<uint8_t> in, out;
};

void forward_bench(benchmark::State& state, Format format, bool causal) {
  Scores scores(format, state.range(0), 1);
  const SoftmaxForward args = {.shape = shape_of(state.range(0)),
                               .x = scores.in.data(),
                               .y = scores.out.data(),
                               .format = format,
                               .scale = 0.125f,
                               .causal = causal};
  bench::run(state, scores.stream(), scores.count, [&] { softmax_forward(args); });
}

void masked_bench(benchmark::State& state, Format format) {
  Scores scores(format, state.range(0), 1);
  std::vector<uint8_t> mask(256 * 256);
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = i % 7 == 0;
  const SoftmaxForward args = {.shape = shape_of(state.range(0)),
                               .x = scores.in.data(),
                               .y = scores.out.data(),
                               .format = format,
                               .scale = 0.125f,
                               .mask = mask.data(),
                               .mask_query_stride = 256};
  bench::run(state, scores.stream(), scores.count, [&] { softmax_forward(args); });
}

void backward_bench(benchmark::State& state, Format format) {
  Scores scores(format, state.range(0), 2);
  const SoftmaxBackward args = {.shape = shape_of(state.range(0)),
                                .y = scores.in.data(),
                                .dy = scores.in.data() + scores.one,
                                .dx = scores.out.data(),
                                .format = format,
                                .scale = 0.125f};
  bench::run(state, scores.stream(), scores.count, [&] { softmax_backward(args); });
}

#define PLIMSOLL_BATCH ->Arg(1)->Arg(128)->UseManualTime()->MinTime(0.2)
BENCHMARK_CAPTURE(forward_bench, fp32, Format::kFp32, false) PLIMSOLL_BATCH;
BENCHMARK_CAPTURE(forward_bench, bf16, Format::kBf16, false) PLIMSOLL_BATCH;
BENCHMARK_CAPTURE(forward_bench, bf16_causal, Format::kBf16, true) PLIMSOLL_BATCH;
BENCHMARK_CAPTURE(masked_bench, bf16, Format::kBf16) PLIMSOLL_BATCH;
BENCHMARK_CAPTURE(backward_bench, fp32, Format::kFp32) PLIMSOLL_BATCH;
BENCHMARK_CAPTURE(backward_bench, bf16, Format::kBf16) PLIMSOLL_BATCH;

}  // namespace
}  // namespace plimsoll::kernels
