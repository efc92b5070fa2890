#include "plimsoll/models/t5/paged.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "plimsoll/io/error.h"
#include "plimsoll/io/json.h"
#include "plimsoll/models/gauge_certificate.h"
#include "plimsoll/models/t5/read_config.h"
#include "plimsoll/models/team/step.h"

namespace plimsoll::models {
namespace {

at::Tensor row_of(std::span<const int64_t> tokens) {
  at::Tensor row = at::empty({1, std::ssize(tokens)}, at::kLong);
  std::ranges::copy(tokens, row.mutable_data_ptr<int64_t>());
  return row;
}

// [1, heads, tokens, channels] of the first pages of a text, of memory [pages, kPageTokens, heads, channels].
at::Tensor first_tokens(const at::Tensor& memory, const at::Tensor& pages, int64_t tokens) {
  const at::Tensor row = memory.index_select(0, pages.narrow(0, 0, pages_of(tokens))).flatten(0, 1);
  return row.narrow(0, 0, tokens).unsqueeze(0).transpose(1, 2);
}

}  // namespace

PagedT5::PagedT5(T5ForConditionalGeneration model) : model_(std::move(model)) {
  TORCH_CHECK_VALUE(!config().encoder_only, "t5: expected a model with a decoder, got an encoder alone");
}

TokenCache PagedT5::make_cache(const TokenCacheOptions& options) const {
  TORCH_CHECK_VALUE(options.format == nn::CacheFormat::kAsGiven,
                    "t5: expected keys and values as they are computed, for a T5's layers read no others; got bf16 or "
                    "fp8");
  return {config().num_decoder_layers, options};
}

int64_t PagedT5::prepare(TokenCache& cache) {
  const at::NoGradGuard no_grad;
  const at::Tensor token = at::full({1, 1}, config().eos_token_id, at::kLong);
  int64_t vocabulary = 0;
  for (int call = 0; call < 2; ++call) {  // the second packs the weights
    T5Cache own = model_->start({model_->encode(token)}, 1, 1);
    vocabulary = model_->extend(token, own).size(1);
    if (call > 0) continue;
    for (size_t i = 0; i < own.layers_.size(); ++i) {
      const T5CrossKeys& encoder = own.layers_[i].encoder;
      cache.layer(i).append(encoder.key.transpose(1, 2), encoder.value.transpose(1, 2));
    }
  }
  return vocabulary;
}

void PagedT5::encode(const TextTokens& text) {
  const int64_t count = text.encoder_tokens, places = encoder_places(count);
  TORCH_CHECK(count > 0 && std::ssize(text.tokens) > places, "t5: expected a prompt of 1 token or more, ", places,
              " places, and a token of the decoder, got ", count, " and ", text.tokens.size(), " tokens");
  const at::Tensor hidden = model_->encode(row_of(text.tokens.first(static_cast<size_t>(count))));
  for (size_t i = 0; i < text.cache.layers(); ++i) {
    const T5CrossKeys keys = model_->decoder->block_at(i).cross_attention().cross_keys(hidden);
    text.cache.layer(i).append(keys.key.transpose(1, 2), keys.value.transpose(1, 2));
  }
  text.cache.keep(places);
}

const T5DistanceBias& PagedT5::bias_for(int64_t keys) {
  if (keys <= bias_.before) return bias_;
  T5DistanceBias wider = {.before = std::max(keys, 2 * bias_.before)};
  at::Tensor bias;
  for (int64_t i = 0; i < config().num_decoder_layers; ++i) {
    T5AttentionImpl& attention = model_->decoder->block_at(static_cast<size_t>(i)).self_attention();
    if (!attention.relative_attention_bias.is_empty()) {
      bias = model_->decoder->bias(attention, kMostTextRows, wider.before);
    }
    wider.blocks.push_back(bias);
  }
  bias_ = std::move(wider);  // whole, or as it was where there is no memory
  return bias_;
}

// A token after another: FP16 with fixes has other sums for several.
at::Tensor PagedT5::read_by_layers(const TextTokens& text) {
  const int64_t first_page = pages_of(text.encoder_tokens), places = encoder_places(text.encoder_tokens);
  T5Cache cache;
  cache.rows_ = 1;
  for (size_t i = 0; i < text.cache.layers(); ++i) {
    nn::KeyValueCache& all = text.cache.layer(i);
    const nn::CachedTokens memory = all.grow(0);
    nn::KeyValueCache own = all;
    own.clear();
    own.set_pages(all.pages().slice(0, first_page));
    own.set_length(all.length() - places);
    cache.layers_.push_back({.tokens = std::move(own),
                             .encoder = {first_tokens(memory.key, all.pages(), text.encoder_tokens),
                                         first_tokens(memory.value, all.pages(), text.encoder_tokens)}});
  }
  at::Tensor hidden;
  for (const int64_t token : text.tokens) {
    hidden = model_->decoder->forward(
        {.hidden = model_->embed(row_of({&token, 1})), .numerics = model_->numerics, .cache = &cache});
    for (size_t i = 0; i < text.cache.layers(); ++i) text.cache.layer(i).grow(1);
  }
  return text.wants_logits ? model_->logits(hidden).squeeze(1) : at::Tensor();
}

// Logits of texts whose tokens, few of each, the decoder alone reads.
at::Tensor PagedT5::read(std::span<const TextTokens> texts) {
  int64_t longest = 0, rows = 0;
  for (const TextTokens& text : texts) {
    longest = std::max(longest, text.cache.length() + std::ssize(text.tokens) - encoder_places(text.encoder_tokens));
    rows += std::ssize(text.tokens);
  }
  if (rows <= kMostTextRows) {
    if (const auto found = T5TeamStep::logits(*model_, texts, bias_for(longest))) return found->to(at::kFloat);
  }
  std::vector<at::Tensor> logits = {at::empty({0, config().vocab_size}, at::kFloat)};
  for (const TextTokens& text : texts) {
    if (const at::Tensor own = read_by_layers(text); own.defined()) logits.push_back(own.to(at::kFloat));
  }
  return at::cat(logits);
}

at::Tensor PagedT5::extend_texts(std::span<const TextTokens> texts) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;  // as T5ForConditionalGenerationImpl::extend()
  std::vector<TextTokens> rest;
  for (TextTokens text : texts) {
    if (text.cache.length() == 0) {
      encode(text);
      text.tokens = text.tokens.subspan(static_cast<size_t>(encoder_places(text.encoder_tokens)));
    }
    for (; text.tokens.size() > kMostStepRows; text.tokens = text.tokens.subspan(kMostStepRows)) {
      TextTokens first = text;
      first.tokens = text.tokens.first(kMostStepRows);
      first.wants_logits = false;
      read({&first, 1});
    }
    rest.push_back(text);
  }
  return read(rest);
}

bool is_t5_directory(const std::filesystem::path& directory) {
  const std::filesystem::path config = directory / "config.json";
  if (!std::filesystem::exists(config)) return false;
  const nlohmann::json members = io::read_json(config);
  const auto type = members.is_object() ? members.find("model_type") : members.end();
  return type != members.end() && type->is_string() && is_t5_type(type->get_ref<const std::string&>());
}

std::shared_ptr<PagedT5> load_paged_t5(const std::filesystem::path& directory, T5Dtype dtype, const Warn& warn) {
  T5ForConditionalGeneration model = load_t5(io::HuggingFaceDirectory(directory), dtype, warn);
  if (model->config.encoder_only) {
    io::fail("{}: expected a model with a decoder, got an encoder alone", directory.native());
  }
  if (!std::filesystem::exists(directory / kGaugeCertificate)) model->numerics = T5Fixes::seed();
  return std::make_shared<PagedT5>(std::move(model));
}

}  // namespace plimsoll::models
