#include "plimsoll/models/t5/model.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "plimsoll/models/t5/team_step.h"
#include "plimsoll/nn/precision.h"
#include "plimsoll/ops/embedding/embedding.h"
#include "plimsoll/ops/loss/cross_entropy.h"

namespace plimsoll::models {
namespace {

constexpr int64_t kIgnored = -100;  // a label
constexpr const char* kHead = "lm_head";

void check_ids(const at::Tensor& ids, const char* name) {
  TORCH_CHECK(ids.defined() && ids.scalar_type() == at::kLong && ids.dim() == 2 && ids.numel() > 0, "t5: expected ",
              name, " int64 [batch, seq] of at least one token, got ",
              ids.defined() ? c10::str(ids.sizes(), " of ", ids.scalar_type()) : "none");
}

}  // namespace

T5ForConditionalGenerationImpl::T5ForConditionalGenerationImpl(const T5Config& settings) : config(settings) {
  check(config);
  T5ForConditionalGenerationImpl::reset();
}

void T5ForConditionalGenerationImpl::reset() {
  const std::vector<int64_t> table = {config.vocab_size, config.d_model};
  shared = register_module("shared", T5Weight(table));
  encoder = register_module("encoder", T5Stack(config, T5Role::kEncoder));
  if (!config.encoder_only) {
    decoder = register_module("decoder", T5Stack(config, T5Role::kDecoder));
    const ops::CodeSource source = head_.is_empty() ? ops::CodeSource{} : head_->code_source();  // of what is cloned
    head_ = T5Linear(config.d_model, config.vocab_size);
    if (config.tie_word_embeddings) {
      head_->tie(shared);
      if (source.weight.defined()) head_->quantize(source);
      nn::name_products(*head_, kHead);
    } else {
      lm_head = register_module(kHead, head_);
    }
    logits_ = T5Product({head_});
  }
  nn::name_products(*this);
  keep_plan();
  for (const auto& item : named_modules("", /*include_self=*/false)) {
    if (auto* held = dynamic_cast<T5WeightImpl*>(item.value().get())) held->path = item.key();
  }
}

// A tied head is no child.
void T5ForConditionalGenerationImpl::keep_plan() {
  std::vector<std::string> names = config.high_precision;
  if (config.encoder_only) {
    std::erase_if(names, [](const std::string& name) { return name == kHead || name.starts_with("decoder."); });
  } else if (config.tie_word_embeddings && std::erase(names, kHead) > 0) {
    nn::keep_in_high_precision(*head_);
  }
  nn::keep_in_high_precision(*this, names);
}

std::vector<T5Product> T5ForConditionalGenerationImpl::products() {
  std::vector<T5Product> result = encoder->products();
  if (config.encoder_only) return result;
  for (T5Product& product : decoder->products()) result.push_back(std::move(product));
  result.push_back(logits_);
  return result;
}

void T5ForConditionalGenerationImpl::reset_parameters(std::optional<at::Generator> generator) {
  const at::NoGradGuard no_grad;
  const auto by_root = [](int64_t size) { return 1 / std::sqrt(static_cast<double>(size)); };
  for (const auto& parameter : named_parameters()) {
    const std::string& name = parameter.key();
    const auto is = [&](const char* ending) { return name.ends_with(ending); };
    double deviation = by_root(config.d_model);
    if (is("shared.weight") || is("lm_head.weight")) deviation = 1;
    if (is(".q.weight")) deviation = by_root(config.d_model * config.d_kv);
    if (is(".o.weight")) deviation = by_root(config.num_heads * config.d_kv);
    if (is(".wo.weight")) deviation = by_root(config.d_ff);
    at::Tensor tensor = parameter.value();
    if (is("layer_norm.weight")) {
      tensor.fill_(config.initializer_factor);
    } else {
      tensor.normal_(0, config.initializer_factor * deviation, generator);
    }
  }
}

at::ScalarType T5ForConditionalGenerationImpl::computed_dtype() const {
  const at::Tensor& weight = encoder->final_layer_norm->weight;
  return nn::scope_dtype(weight.device().type()).value_or(weight.scalar_type());
}

at::Tensor T5ForConditionalGenerationImpl::embed(const at::Tensor& ids) const {
  return ops::embedding({.tokens = ids, .token_weight = shared->weight}, computed_dtype());
}

at::Tensor T5ForConditionalGenerationImpl::embed(const at::Tensor& ids, const at::Tensor& embeds,
                                                 const char* name) const {
  if (!embeds.defined()) {
    check_ids(ids, name);
    return embed(ids);
  }
  TORCH_CHECK_VALUE(!ids.defined(), "t5: expected ", name, " or its embeddings, got both");
  TORCH_CHECK_VALUE(
      embeds.dim() == 3 && embeds.size(2) == config.d_model && embeds.is_floating_point() && embeds.numel() > 0,
      "t5: expected embeddings of ", name, " [batch, seq, ", config.d_model, "], got ", embeds.sizes(), " of ",
      embeds.scalar_type());
  return embeds.to(computed_dtype());
}

T5Output T5ForConditionalGenerationImpl::run_encoder(const T5Input& input) {
  if (numerics) check(*numerics);
  T5Output output;
  output.encoder_output =
      encoder->forward({.hidden = embed(input.input_ids, input.inputs_embeds, "input_ids"),
                        .attention_mask = input.attention_mask,
                        .numerics = numerics,
                        .hidden_states = input.hidden_states ? &output.encoder_hidden_states : nullptr});
  return output;
}

at::Tensor T5ForConditionalGenerationImpl::encode(const at::Tensor& input_ids, const at::Tensor& attention_mask) {
  return run_encoder({.input_ids = input_ids, .attention_mask = attention_mask}).encoder_output;
}

void T5ForConditionalGenerationImpl::check_has_decoder() const {
  TORCH_CHECK(!config.encoder_only, "t5: expected a model with a decoder, got an encoder alone");
}

at::Tensor T5ForConditionalGenerationImpl::logits(const at::Tensor& hidden) {
  const double factor = 1 / std::sqrt(static_cast<double>(config.d_model));
  const at::Tensor x = config.scale_decoder_outputs ? hidden * factor : hidden;
  return logits_.joined(x);
}

T5Output T5ForConditionalGenerationImpl::forward_cached(const T5Input& input) {
  TORCH_CHECK_VALUE(!at::GradMode::is_enabled() && !input.labels.defined() && !input.decoder_attention_mask.defined(),
                    "t5: expected no gradients (torch.no_grad()), no labels and no decoder_attention_mask with "
                    "use_cache or past_key_values");
  T5Output output;
  output.encoder_output = input.encoder_output;
  const at::Tensor& embeds = input.decoder_inputs_embeds;
  const at::Tensor hidden = embed(input.decoder_input_ids, embeds, "decoder_input_ids");
  T5Cache& cache = *input.cache;
  TORCH_CHECK_VALUE(hidden.size(0) == cache.rows(), "t5: expected decoder_input_ids of ", cache.rows(),
                    " rows, as many as past_key_values has, got ", hidden.size(0));
  if (!embeds.defined() && !input.hidden_states) {
    if (const auto found = T5TeamStep::logits(*this, input.decoder_input_ids, cache)) {
      output.logits = found->unsqueeze(1);
      return output;
    }
  }
  output.logits =
      logits(decoder->forward({.hidden = hidden,
                               .numerics = numerics,
                               .cache = &cache,
                               .hidden_states = input.hidden_states ? &output.decoder_hidden_states : nullptr}));
  return output;
}

T5Output T5ForConditionalGenerationImpl::forward(const T5Input& input) {
  check_has_decoder();
  if (input.cache != nullptr) return forward_cached(input);
  T5Output output;
  if (input.encoder_output.defined()) {
    output.encoder_output = input.encoder_output;
  } else {
    output = run_encoder(input);
  }
  const bool shifts =
      !input.decoder_input_ids.defined() && !input.decoder_inputs_embeds.defined() && input.labels.defined();
  const at::Tensor ids = shifts ? shift_right(input.labels) : input.decoder_input_ids;
  const T5Encoded encoded{output.encoder_output, input.attention_mask};
  const at::Tensor hidden =
      decoder->forward({.hidden = embed(ids, input.decoder_inputs_embeds, "decoder_input_ids or labels"),
                        .attention_mask = input.decoder_attention_mask,
                        .numerics = numerics,
                        .encoded = &encoded,
                        .hidden_states = input.hidden_states ? &output.decoder_hidden_states : nullptr});
  output.logits = logits(hidden);
  if (input.labels.defined()) {
    output.loss = ops::cross_entropy(output.logits, input.labels, {.ignore_index = kIgnored});
  }
  return output;
}

T5Cache T5ForConditionalGenerationImpl::start(const T5Encoded& encoded, int64_t rows_per_text, int64_t capacity) {
  check_has_decoder();
  return decoder->make_cache(encoded, {.rows_per_text = rows_per_text, .capacity = capacity, .numerics = numerics});
}

at::Tensor T5ForConditionalGenerationImpl::extend(const at::Tensor& tokens, T5Cache& cache) {
  check_has_decoder();
  check_ids(tokens, "tokens");
  TORCH_CHECK(tokens.size(0) == cache.rows(), "t5: expected tokens of ", cache.rows(), " rows, got ", tokens.size(0));
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;  // a quarter of a step would be spent in its wrappers
  if (const auto found = T5TeamStep::logits(*this, tokens, cache)) return found->to(at::kFloat);
  const at::Tensor hidden = decoder->forward({.hidden = embed(tokens), .numerics = numerics, .cache = &cache});
  return logits(hidden.narrow(1, tokens.size(1) - 1, 1)).squeeze(1).to(at::kFloat);
}

at::Tensor T5ForConditionalGenerationImpl::shift_right(const at::Tensor& labels) const {
  check_ids(labels, "labels");
  at::Tensor ids = at::full(labels.sizes(), config.decoder_start_token_id, at::kLong);
  ids.narrow(1, 1, labels.size(1) - 1).copy_(labels.narrow(1, 0, labels.size(1) - 1));
  return ids.masked_fill_(ids.eq(kIgnored), config.pad_token_id);
}

}  // namespace plimsoll::models
