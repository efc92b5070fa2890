#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <vector>

#include "plimsoll/format/codec.h"
#include "plimsoll/kernels/cross_entropy/cross_entropy.h"
#include "plimsoll/kernels/stream_bench.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

struct Logits {
  Logits(Format format, int64_t row_count, int64_t cols)
      : rows(row_count), vocabulary(cols), bytes(static_cast<size_t>(rows * cols * format::bytes(format))) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const auto width = static_cast<size_t>(format::bytes(format));
    for (size_t i = 0; i < bytes.size(); i += width) {
      const uint32_t code = format::encode(format, normal(random));
      __builtin_memcpy(&bytes[i], &code, width);
    }
    for (int64_t row = 0; row < rows; ++row) targets.push_back(row * 7919 % vocabulary);
  }

  int64_t rows, vocabulary;
  std::vector<uint8_t> bytes;
  std::vector<int64_t> targets;
};

// The gradient overwrites the logits and is the next round's logits.
void in_place_bench(benchmark::State& state, Format format, bool gradient) {
  Logits logits(format, state.range(0), state.range(1));
  std::vector<float> loss(static_cast<size_t>(logits.rows));
  const CrossEntropy args = {.rows = logits.rows,
                             .vocabulary = logits.vocabulary,
                             .logits = logits.bytes.data(),
                             .logits_stride = logits.vocabulary,
                             .format = format,
                             .targets = logits.targets.data(),
                             .loss = loss.data(),
                             .grad = gradient ? logits.bytes.data() : nullptr,
                             .grad_stride = logits.vocabulary,
                             .grad_factor = 1.0f / static_cast<float>(logits.rows)};
  const auto size = static_cast<int64_t>(logits.bytes.size());
  bench::run(state, {logits.bytes.data(), size, gradient ? logits.bytes.data() : nullptr, gradient ? size : 0},
             logits.rows * logits.vocabulary, [&] { cross_entropy(args); });
}

#define PLIMSOLL_SHAPES ->Args({4096, 256})->Args({4096, 50257})->UseManualTime()->MinTime(0.2)
BENCHMARK_CAPTURE(in_place_bench, fp32, Format::kFp32, true) PLIMSOLL_SHAPES;
BENCHMARK_CAPTURE(in_place_bench, bf16, Format::kBf16, true) PLIMSOLL_SHAPES;
BENCHMARK_CAPTURE(in_place_bench, fp16, Format::kFp16, true) PLIMSOLL_SHAPES;
BENCHMARK_CAPTURE(in_place_bench, fp32_loss_only, Format::kFp32, false) PLIMSOLL_SHAPES;
BENCHMARK_CAPTURE(in_place_bench, bf16_loss_only, Format::kBf16, false) PLIMSOLL_SHAPES;

}  // namespace
}  // namespace plimsoll::kernels
