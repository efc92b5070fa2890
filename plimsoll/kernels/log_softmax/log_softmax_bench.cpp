#include <benchmark/benchmark.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "plimsoll/kernels/bench_data.h"
#include "plimsoll/kernels/log_softmax/log_softmax.h"
#include "plimsoll/kernels/stream_bench.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

constexpr int64_t kRows = 512;

struct Rows {
  Rows(Format format, int64_t cols, int64_t matrices)
      : count(kRows * cols),
        one(count * format::bytes(format)),
        in(bench::random_elements(format, count * matrices)),
        out(static_cast<size_t>(one)) {}
  bench::Stream stream() { return {in.data(), static_cast<int64_t>(in.size()), out.data(), one}; }

  int64_t count, one;
  std::vector<uint8_t> in, out;
};

void forward_bench(benchmark::State& state, Format format) {
  Rows rows(format, state.range(0), 1);
  const LogSoftmaxForward args = {
      .rows = kRows, .cols = state.range(0), .x = rows.in.data(), .y = rows.out.data(), .format = format};
  bench::run(state, rows.stream(), rows.count, [&] { log_softmax_forward(args); });
}

void backward_bench(benchmark::State& state, Format format) {
  Rows rows(format, state.range(0), 2);
  const LogSoftmaxBackward args = {.rows = kRows,
                                   .cols = state.range(0),
                                   .y = rows.in.data(),
                                   .dy = rows.in.data() + rows.one,
                                   .dx = rows.out.data(),
                                   .format = format};
  bench::run(state, rows.stream(), rows.count, [&] { log_softmax_backward(args); });
}

constexpr std::initializer_list<int64_t> kVocabularies = {256, 50257};
const bool kRegistered[] = {
    bench::add("log_softmax/forward/fp32", kVocabularies, forward_bench, Format::kFp32),
    bench::add("log_softmax/forward/bf16", kVocabularies, forward_bench, Format::kBf16),
    bench::add("log_softmax/backward/fp32", kVocabularies, backward_bench, Format::kFp32),
    bench::add("log_softmax/backward/bf16", kVocabularies, backward_bench, Format::kBf16),
};

}  // namespace
}  // namespace plimsoll::kernels
