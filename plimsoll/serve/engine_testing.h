// Tiny models to serve, and the reply that a request gets alone.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/decoder/testing.h"
#include "plimsoll/models/next_token.h"
#include "plimsoll/models/t5/paged.h"
#include "plimsoll/models/t5/testing.h"
#include "plimsoll/nn/held_codes.h"
#include "plimsoll/nn/testing.h"
#include "plimsoll/runtime/philox.h"
#include "plimsoll/serve/engine.h"

namespace plimsoll::serve::testing {

inline constexpr int64_t kContext = 160;

inline std::shared_ptr<models::DecoderImpl> tiny_model(size_t family, bool codes = false) {
  at::manual_seed(7);
  models::DecoderConfig config = models::testing::small_decoder(models::decoder_traits()[family]);
  config.context = kContext;
  models::Decoder model(config);
  nn::testing::randomize(*model);
  model->to(at::kBFloat16);
  if (codes) nn::hold_codes(*model);
  model->eval();
  return model.ptr();
}

inline int64_t page_bytes_of(const std::shared_ptr<models::PagedModel>& model, nn::CacheFormat cache) {
  return Engine(model, {.max_context = kLeastContext, .cache = cache}).stats().page_bytes;
}

// A model for whose steps the system has too little memory at times, which it says in three ways.
class LittleMemory : public models::PagedModel {
 public:
  using Lacks = std::function<bool(std::span<const models::TextTokens>)>;

  LittleMemory(std::shared_ptr<models::PagedModel> model, Lacks lacks)
      : model_(std::move(model)), lacks_(std::move(lacks)) {}

  int64_t context() const override { return model_->context(); }
  std::optional<int64_t> decoder_start() const override { return model_->decoder_start(); }
  models::TokenCache make_cache(const models::TokenCacheOptions& options) const override {
    return model_->make_cache(options);
  }
  int64_t prepare(models::TokenCache& cache) override { return model_->prepare(cache); }
  at::Tensor extend_texts(std::span<const models::TextTokens> texts) override {
    if (!lacks_(texts)) return model_->extend_texts(texts);
    model_->extend_texts(texts.first((texts.size() + 1) / 2));  // as far as it gets
    const int64_t way = failed_steps++ % 3;
    if (way == 0) throw std::bad_alloc();
    TORCH_CHECK_WITH(OutOfMemoryError, way != 1, "expected memory, got none");
    return at::empty({int64_t{1} << 58});
  }

  std::atomic<int64_t> failed_steps = 0;

 private:
  const std::shared_ptr<models::PagedModel> model_;
  const Lacks lacks_;
};

struct Written {
  std::vector<int64_t> ids;
  std::vector<double> log_probabilities;
  models::TextEnd end = models::TextEnd::kLength;
};

inline std::optional<double> uniform_of(const Request& request, int64_t new_tokens) {
  const runtime::Philox philox{.seed = static_cast<uint64_t>(request.seed),
                               .step = static_cast<uint64_t>(request.choice)};
  if (request.sampling.temperature == 0) return std::nullopt;
  return philox.word(static_cast<uint64_t>(new_tokens)) * 0x1p-32;
}

// The reply that the request gets alone of a T5, a token after another.
inline Written written_alone(models::T5ForConditionalGenerationImpl& model, const Request& request) {
  const at::NoGradGuard no_grad;
  at::Tensor prompt = at::empty({1, std::ssize(request.prompt)}, at::kLong);
  std::ranges::copy(request.prompt, prompt.mutable_data_ptr<int64_t>());
  models::T5Cache cache = model.start({model.encode(prompt)}, 1, request.max_new_tokens);
  std::vector<int64_t> text = {model.config.decoder_start_token_id};
  Written written;
  for (int64_t i = 0; i < request.max_new_tokens; ++i) {
    const at::Tensor logits = model.extend(at::full({1, 1}, text.back(), at::kLong), cache).contiguous();
    const std::span<const float> row(logits.const_data_ptr<float>(), static_cast<size_t>(logits.size(1)));
    text.push_back(models::next_token(row, {.text = text,
                                            .new_tokens = i,
                                            .ends = request.ends,
                                            .rules = request.rules,
                                            .sampling = request.sampling,
                                            .uniform = uniform_of(request, i)}));
    written.ids.push_back(text.back());
    written.log_probabilities.push_back(models::log_probability(row, text.back()));
    if (std::ranges::find(request.ends, text.back()) == request.ends.end()) continue;
    written.end = models::TextEnd::kToken;
    break;
  }
  return written;
}

// The reply that the request gets alone, by the engine of `plimsoll generate`.
inline Written written_alone(models::LanguageModel& model, const Request& request, const EngineOptions& options) {
  models::DecodingOptions decoding_options{
      .sampling = request.sampling, .rules = request.rules, .eos_token_ids = request.ends, .cache = options.cache};
  decoding_options.uniform = [&](int64_t, int64_t new_tokens) {
    const runtime::Philox philox{.seed = static_cast<uint64_t>(request.seed),
                                 .step = static_cast<uint64_t>(request.choice)};
    return philox.word(static_cast<uint64_t>(new_tokens)) * 0x1p-32;
  };
  models::Decoding decoding(model, decoding_options);
  decoding.begin({request.prompt}, request.max_new_tokens);
  Written written;
  while (!decoding.done()) {
    std::optional<amp::Fp8Autocast> scope;
    if (options.recipe) scope.emplace(amp::Fp8AutocastOptions{.recipe = *options.recipe});
    decoding.step([&](const models::NewToken& token) {
      written.ids.push_back(token.id);
      written.log_probabilities.push_back(models::log_probability(token.logits, token.id));
      return false;
    });
  }
  written.end = decoding.end(0);
  return written;
}

inline Written read_all(Reply& reply) {
  Written written;
  while (const auto token = reply.next()) {
    written.ids.push_back(token->token.id);
    written.log_probabilities.push_back(token->token.log_probability);
  }
  written.end = reply.end();
  return written;
}

}  // namespace plimsoll::serve::testing
