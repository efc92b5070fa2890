#include <benchmark/benchmark.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "plimsoll/kernels/bench_data.h"
#include "plimsoll/kernels/cross_entropy/cross_entropy.h"
#include "plimsoll/kernels/stream_bench.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

struct Logits {
  Logits(Format format, int64_t cols) : vocabulary(cols), bytes(bench::random_elements(format, rows * cols)) {
    for (int64_t row = 0; row < rows; ++row) targets.push_back(row * 7919 % vocabulary);
  }

  int64_t rows = 4096, vocabulary;
  std::vector<uint8_t> bytes;
  std::vector<int64_t> targets;
};

// The gradient overwrites the logits and is the next round's logits.
void in_place_bench(benchmark::State& state, Format format, bool gradient) {
  Logits logits(format, state.range(0));
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

constexpr std::initializer_list<int64_t> kVocabularies = {256, 50257};
const bool kRegistered[] = {
    bench::add("cross_entropy/fp32", kVocabularies, in_place_bench, Format::kFp32, true),
    bench::add("cross_entropy/bf16", kVocabularies, in_place_bench, Format::kBf16, true),
    bench::add("cross_entropy/fp16", kVocabularies, in_place_bench, Format::kFp16, true),
    bench::add("cross_entropy/fp32_loss_only", kVocabularies, in_place_bench, Format::kFp32, false),
    bench::add("cross_entropy/bf16_loss_only", kVocabularies, in_place_bench, Format::kBf16, false),
};

}  // namespace
}  // namespace plimsoll::kernels
