// generate/<dtype>/<rows>: a step of generation with the shape of SmolLM2-135M at random weights, behind a prompt of 512
// tokens, against a plain read of as many bytes as its weights have, on huge pages where packed weights are.
#include <c10/util/Exception.h>
#include <torch/types.h>

#include <algorithm>
#include <memory>

#include "plimsoll/kernels/stream_bench.h"
#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/weight_dtype.h"
#include "plimsoll/nn/held_codes.h"
#include "plimsoll/runtime/pages.h"

namespace plimsoll::models {
namespace {

constexpr int64_t kPromptTokens = 512;

Decoder smollm2(WeightDtype dtype) {
  DecoderConfig config;
  config.vocabulary = 49152;
  config.layers = 30;
  config.dim = 576;
  config.heads = 9;
  config.groups = 3;
  config.head_dim = 64;
  config.ffn_dim = 1536;
  config.context = 8192;
  config.ties_head = true;
  config.reaches.assign(30, Reach::kFull);
  Decoder model(config);
  model->to(computed_in(dtype, at::kFloat));
  if (const std::optional<ops::CodeKind> kind = code_kind(dtype)) nn::hold_codes(*model, {}, {.kind = *kind});
  model->eval();
  return model;
}

// Bytes of the weights of products; the head reads the embedding, which is never codes.
int64_t weight_bytes(const DecoderImpl& model, WeightDtype dtype) {
  int64_t bytes = 0;
  for (const auto& parameter : model.named_parameters()) {
    const std::optional<ops::CodeKind> kind = code_kind(dtype);
    const at::Tensor& weight = parameter.value();
    if (weight.dim() != 2) continue;
    bytes += kind && parameter.key().starts_with("blocks.")
                 ? static_cast<int64_t>(ops::bytes_of_codes(*kind, weight.size(0), weight.size(1)))
                 : weight.numel() * weight.element_size();
  }
  return bytes;
}

void run_steps(benchmark::State& state, WeightDtype dtype, int64_t rows) {
  const at::NoGradGuard no_grad;
  Decoder model = smollm2(dtype);
  TokenCache cache = model->make_cache();
  model->extend(at::randint(49152, {rows, kPromptTokens}, at::kLong), cache);
  const at::Tensor token = at::randint(49152, {rows, 1}, at::kLong);
  const int64_t bytes = weight_bytes(*model, dtype);
  const auto mapped = static_cast<size_t>((bytes + 4095) / 4096 * 4096);
  const auto unmap = [mapped](char* memory) { runtime::unmap_pages(memory, mapped); };
  const std::unique_ptr<char, decltype(unmap)> read(static_cast<char*>(runtime::map_pages(mapped)), unmap);
  TORCH_CHECK(read, "generate: expected ", mapped, " bytes of memory, got none from the system");
  std::fill_n(read.get(), mapped, 1);
  kernels::bench::run(
      state, bytes, [&] { model->extend(token, cache); },
      [&] {
        kernels::bench::plain_loop({read.get(), bytes, nullptr, 0});
      });
  state.counters["tokens/s"] = static_cast<double>(rows) * state.counters["GB/s"] * 1e9 / static_cast<double>(bytes);
}

const bool kRegisteredSteps = [] {
  for (const auto& [name, dtype] : kWeightDtypes) {
    if (dtype == WeightDtype::kAsStored) continue;
    for (const int64_t rows : {1, 4}) {
      const std::string full = "generate/" + std::string(name) + "/" + std::to_string(rows);
      benchmark::RegisterBenchmark(full.c_str(), run_steps, dtype, rows)->UseManualTime()->MinTime(0.5);
    }
  }
  return true;
}();

}  // namespace
}  // namespace plimsoll::models
