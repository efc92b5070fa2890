#include <benchmark/benchmark.h>

#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

#include "plimsoll/kernels/embedding/embedding.h"
#include "plimsoll/kernels/stream_bench.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

constexpr EmbeddingShape kShape = {.batch = 8, .seq = 512, .dim = 768};
constexpr int64_t kPlaces = kShape.batch * kShape.seq, kValues = kPlaces * kShape.dim;

std::vector<int64_t> tokens_of(int64_t vocabulary) {
  std::mt19937 random(1);
  std::vector<int64_t> tokens(static_cast<size_t>(kPlaces));
  for (int64_t& token : tokens) token = static_cast<int64_t>(random() % static_cast<uint64_t>(vocabulary));
  return tokens;
}

void forward_bench(benchmark::State& state, Format output_format) {
  const int64_t vocabulary = state.range(0);
  const std::vector<int64_t> tokens = tokens_of(vocabulary);
  const std::vector<float> weight(static_cast<size_t>(vocabulary * kShape.dim), 0.5f),
      positions(static_cast<size_t>(kShape.seq * kShape.dim), 0.25f);
  const int64_t written = kValues * format::bytes(output_format);
  std::vector<uint8_t> output(static_cast<size_t>(written));
  const EmbeddingForward args = {.shape = kShape,
                                 .tokens = tokens.data(),
                                 .token_weight = weight.data(),
                                 .position_weight = positions.data(),
                                 .output = output.data(),
                                 .output_format = output_format};
  // One vector of the weight a token, as many as there are.
  const int64_t read = std::min(kPlaces, vocabulary) * kShape.dim * int64_t{sizeof(float)};
  bench::run(state, {weight.data(), read, output.data(), written}, kValues, [&] { embedding_forward(args); });
}

void backward_bench(benchmark::State& state, Format grad_format) {
  const int64_t vocabulary = state.range(0);
  const std::vector<int64_t> tokens = tokens_of(vocabulary);
  const int64_t read = kValues * format::bytes(grad_format);
  const std::vector<uint8_t> grad(static_cast<size_t>(read));
  std::vector<float> token_grad(static_cast<size_t>(vocabulary * kShape.dim)),
      position_grad(static_cast<size_t>(kShape.seq * kShape.dim));
  const EmbeddingBackward args = {.shape = kShape,
                                  .tokens = tokens.data(),
                                  .grad = grad.data(),
                                  .grad_format = grad_format,
                                  .vocabulary = vocabulary,
                                  .token_grad = token_grad.data(),
                                  .position_grad = position_grad.data()};
  const auto written = static_cast<int64_t>(token_grad.size() * sizeof(float));
  bench::run(state, {grad.data(), read, token_grad.data(), written}, kValues, [&] { embedding_backward(args); });
}

constexpr std::initializer_list<int64_t> kVocabularies = {256, 50257};
const bool kRegistered[] = {
    bench::add("embedding/forward/fp32", kVocabularies, forward_bench, Format::kFp32),
    bench::add("embedding/forward/bf16", kVocabularies, forward_bench, Format::kBf16),
    bench::add("embedding/backward/fp32", kVocabularies, backward_bench, Format::kFp32),
    bench::add("embedding/backward/bf16", kVocabularies, backward_bench, Format::kBf16),
};

}  // namespace
}  // namespace plimsoll::kernels
