#include "plimsoll/models/t5/team_step.h"

#include <ATen/ops/from_blob.h>

#include <cmath>

#include "plimsoll/models/team/layers.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::models {
namespace {

kernels::AttentionInput encoder_heads(const at::Tensor& x) {
  return {x.const_data_ptr(), x.stride(0), x.stride(1), x.stride(2)};
}

}  // namespace

std::optional<at::Tensor> T5TeamStep::logits(T5ForConditionalGenerationImpl& model, const at::Tensor& tokens,
                                             T5Cache& cache) {
  if (tokens.size(1) != 1 || tokens.size(0) > kMostStepRows || cache.length() == 0) return std::nullopt;
  T5TeamStep step(model, tokens);
  const bool same_dtype = cache.layers_.front().encoder.key.scalar_type() == step.dtype_;
  if (!same_dtype || cache.encoder_keys_.additive.defined() || !step.describe()) return std::nullopt;
  step.extend(cache);
  return run(step.step_);
}

std::optional<at::Tensor> T5TeamStep::logits(T5ForConditionalGenerationImpl& model, std::span<const TextTokens> texts,
                                             const T5DistanceBias& bias) {
  std::vector<int64_t> tokens, head_rows;
  std::vector<TextCache> caches;
  for (const TextTokens& text : texts) {
    tokens.insert(tokens.end(), text.tokens.begin(), text.tokens.end());
    if (text.wants_logits) head_rows.push_back(std::ssize(tokens) - 1);
    caches.push_back({text.cache, std::ssize(text.tokens)});
  }
  T5TeamStep step(model, at::from_blob(tokens.data(), {std::ssize(tokens)}, at::kLong));
  if (!share_pages(caches, step.dtype_) || !step.describe()) return std::nullopt;
  step.step_.head_rows = std::move(head_rows);
  step.extend(texts, bias);
  return run(step.step_);
}

T5TeamStep::T5TeamStep(T5ForConditionalGenerationImpl& model, const at::Tensor& tokens)
    : model_(model),
      dtype_(model.encoder->final_layer_norm->weight.scalar_type()),
      step_{
          .tokens = tokens.contiguous(), .format = ops::format_of(dtype_, "t5"), .token_weight = model.shared->weight} {
  if (model.config.scale_decoder_outputs) step_.head_factor = 1 / std::sqrt(static_cast<double>(model.config.d_model));
}

bool T5TeamStep::describe() {
  const bool has_fixes = model_.numerics && dtype_ == at::kHalf;
  if (model_.is_training() || !may_step() || has_fixes) return false;
  const auto packed = [&](const T5Product& product) -> StepProduct {
    const auto weights = product.packed_for(dtype_, /*is_step=*/true);
    if (weights == nullptr) return {};
    return {.weight = weights->operand(), .packed = weights->packed()};
  };
  const auto norm = [&](const T5Weight& weight) {
    return StepNorm{.weight = weight->weight, .epsilon = model_.config.layer_norm_epsilon};
  };
  T5StackImpl& decoder = *model_.decoder;
  for (size_t i = 0; i < decoder.block->size(); ++i) {
    T5BlockImpl& block = decoder.block_at(i);
    T5AttentionImpl &own = block.self_attention(), &cross = block.cross_attention();
    T5DenseReluDenseImpl& feed_forward = block.feed_forward();
    const auto add = [&](auto part) {
      step_.layers.push_back(
          {.norm = norm(block.layer->at<T5LayerImpl>(step_.layers.size() % 3).layer_norm), .part = std::move(part)});
    };
    add(StepAttention{.in = packed(own.query_key_value_), .out = packed(own.output_)});
    add(StepAttention{.in = packed(cross.query_), .out = packed(cross.output_)});
    add(StepFeedForward{
        .up = packed(feed_forward.up_), .activation = model_.config.feed_forward, .down = packed(feed_forward.down_)});
  }
  step_.norm = norm(decoder.final_layer_norm);
  step_.head = packed(model_.logits_);
  if (!fits(step_)) return false;
  const at::Tensor& tokens = step_.tokens;
  check_tokens({tokens.const_data_ptr<int64_t>(), static_cast<size_t>(tokens.numel())}, model_.config.vocab_size);
  return true;
}

// Attention of the step's rows, as many to a text as there are; keys, values and their number are still to be set.
kernels::AttentionForward T5TeamStep::attention(int64_t texts) const {
  const T5Config& config = model_.config;
  return {.shape = {.batch = texts,
                    .heads = config.num_heads,
                    .groups = config.num_heads,
                    .queries = step_.tokens.size(0) / texts,
                    .channels = config.d_kv,
                    .value_channels = config.d_kv},
          .format = step_.format,
          .cache_format = step_.format};
}

kernels::AttentionForward T5TeamStep::cross_attention(const T5Cache& cache, size_t block) const {
  const T5CrossKeys& encoder = cache.layers_[block].encoder;
  const T5KeyMask& keys = cache.encoder_keys_;
  kernels::AttentionForward call = attention(encoder.key.size(0));
  call.shape.keys = encoder.key.size(2);
  call.k = encoder_heads(encoder.key);
  call.v = encoder_heads(encoder.value);
  if (keys.lengths.defined()) call.rules.key_lengths = keys.lengths.const_data_ptr<int64_t>();
  if (keys.mask.defined()) {
    call.rules.mask = static_cast<const uint8_t*>(keys.mask.const_data_ptr());
    call.rules.mask_strides = {.batch = keys.mask.stride(0), .key = keys.mask.stride(3)};
  }
  return call;
}

void T5TeamStep::extend(T5Cache& all) {
  T5StackImpl& decoder = *model_.decoder;
  at::Tensor bias;
  for (size_t i = 0; i < decoder.block->size(); ++i) {
    T5AttentionImpl& module = decoder.block_at(i).self_attention();
    T5LayerCache& cache = all.layers_[i];
    if (!module.relative_attention_bias.is_empty()) bias = decoder.cached_bias(module, 1, cache);
    StepAttention& part = self_attention(i);
    part.call = attention(step_.tokens.size(0));
    part.call.rules = {.causal = kernels::Causal::kBottomRight,
                       .bias = bias.const_data_ptr(),
                       .bias_format = ops::format_of(bias.scalar_type(), "t5"),
                       .bias_strides = {.head = bias.stride(1), .key = bias.stride(3)}};
    part.extend(cache.tokens);
    cross_attention(i).call = cross_attention(all, i);
  }
  all.length_ += 1;
}

void T5TeamStep::extend(std::span<const TextTokens> texts, const T5DistanceBias& bias) {
  StepTexts& own = step_.texts;
  own.first_row = {0};
  for (const TextTokens& text : texts) {
    const int64_t rows = std::ssize(text.tokens), places = encoder_places(text.encoder_tokens);
    for (size_t layer = 0; layer < text.cache.layers(); ++layer) text.cache.layer(layer).grow(rows);
    const auto* pages = text.cache.layer(0).pages().const_data_ptr<int32_t>();
    own.first_row.push_back(own.first_row.back() + rows);
    own.lengths.push_back(text.cache.length() - places);
    own.numbers.push_back(pages + places / kPageTokens);
    encoder_texts_.lengths.push_back(text.encoder_tokens);
    encoder_texts_.numbers.push_back(pages);
  }
  encoder_texts_.first_row = own.first_row;
  for (size_t i = 0; i < bias.blocks.size(); ++i) {
    const at::Tensor& distances = bias.blocks[i];
    const at::Tensor from_zero = distances.narrow(3, bias.before - 1, 1);
    nn::KeyValueCache& pages = texts.front().cache.layer(i);
    StepAttention &self = self_attention(i), &cross = cross_attention(i);
    self.call = attention(1);
    self.call.rules = {.causal = kernels::Causal::kBottomRight,
                       .bias = from_zero.const_data_ptr(),
                       .bias_format = ops::format_of(distances.scalar_type(), "t5"),
                       .bias_strides = {.head = distances.stride(1), .query = -1, .key = 1}};
    self.extend(pages, own);
    cross.call = attention(1);
    cross.extend(pages, encoder_texts_);
    cross.key = cross.value = {};  // nothing is added to what the encoder has said
  }
}

}  // namespace plimsoll::models
