#include <benchmark/benchmark.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "plimsoll/kernels/bench_data.h"
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
        in(bench::random_elements(format, count * matrices)),
        out(static_cast<size_t>(one)) {}
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
                               .causal = causal ? Causal::kTopLeft : Causal::kNone};
  bench::Stream stream = scores.stream();
  if (causal) stream.input_bytes /= 2;  // what the rule hides is not read
  bench::run(state, stream, scores.count, [&] { softmax_forward(args); });
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

constexpr std::initializer_list<int64_t> kSizes = {1, 128};
const bool kRegistered[] = {
    bench::add("softmax/forward/fp32", kSizes, forward_bench, Format::kFp32, false),
    bench::add("softmax/forward/bf16", kSizes, forward_bench, Format::kBf16, false),
    bench::add("softmax/forward/bf16_causal", kSizes, forward_bench, Format::kBf16, true),
    bench::add("softmax/masked/bf16", kSizes, masked_bench, Format::kBf16),
    bench::add("softmax/backward/fp32", kSizes, backward_bench, Format::kFp32),
    bench::add("softmax/backward/bf16", kSizes, backward_bench, Format::kBf16),
};

}  // namespace
}  // namespace plimsoll::kernels
