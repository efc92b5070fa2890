#include "plimsoll/models/t5/stack.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/dropout.h>
#include <c10/util/Exception.h>

#include "plimsoll/models/t5/relative_bias.h"

namespace plimsoll::models {

void T5Cache::reorder(const at::Tensor& rows) {
  for (T5LayerCache& layer : layers_) layer.tokens.reorder(rows);
}

void T5Cache::reserve(int64_t capacity) {
  for (T5LayerCache& layer : layers_) {
    layer.tokens.reserve(capacity);
    layer.bias = at::Tensor();
  }
  capacity_ = capacity;
}

T5StackImpl::T5StackImpl(const T5Config& settings, T5Role role) : config(settings), role_(role) {
  T5StackImpl::reset();
}

void T5StackImpl::reset() {
  block = register_module("block", torch::nn::ModuleList());
  const int64_t layers = role_ == T5Role::kEncoder ? config.num_layers : config.num_decoder_layers;
  for (int64_t i = 0; i < layers; ++i) {
    block->push_back(T5Block(config, role_, i == 0 || config.relative_bias_in_each_layer));
  }
  final_layer_norm = register_module("final_layer_norm", T5Weight(std::vector<int64_t>{config.d_model}));
}

std::vector<T5Product> T5StackImpl::products() {
  std::vector<T5Product> result;
  const auto add = [&](const std::vector<T5Product>& some) { result.insert(result.end(), some.begin(), some.end()); };
  for (size_t i = 0; i < block->size(); ++i) {
    add(block_at(i).self_attention().self_products());
    if (role_ == T5Role::kDecoder) add(block_at(i).cross_attention().cross_products());
    add(block_at(i).feed_forward().products());
  }
  return result;
}

at::Tensor T5StackImpl::bias(T5AttentionImpl& attention, int64_t queries, int64_t keys) const {
  const RelativeBuckets buckets = {.count = config.relative_attention_num_buckets,
                                   .max_distance = config.relative_attention_max_distance,
                                   .bidirectional = role_ == T5Role::kEncoder};
  return relative_bias(attention.relative_attention_bias->weight, buckets, queries, keys);
}

at::Tensor T5StackImpl::cached_bias(T5AttentionImpl& attention, int64_t queries, T5LayerCache& cache) const {
  const int64_t keys = cache.tokens.length() + queries, capacity = cache.tokens.capacity();
  if (queries > 1 || keys > capacity) return bias(attention, queries, keys);
  if (!cache.bias.defined()) cache.bias = bias(attention, 1, capacity);
  return cache.bias.narrow(3, capacity - keys, keys);
}

T5KeyMask T5StackImpl::encoder_keys(const T5Encoded& encoded, at::ScalarType dtype, const T5Numerics& numerics) const {
  return key_mask(encoded.attention_mask, {.keys = encoded.hidden.size(1), .dtype = dtype, .numerics = numerics});
}

at::Tensor T5StackImpl::forward(const T5StackInput& input) {
  const at::ScalarType dtype = input.hidden.scalar_type();
  const int64_t queries = input.hidden.size(1), before = input.cache == nullptr ? 0 : input.cache->length();
  const ops::Causal causal = role_ == T5Role::kDecoder ? ops::Causal::kBottomRight : ops::Causal::kNone;
  const T5KeyMask keys = key_mask(
      input.attention_mask,
      {.queries = queries, .keys = before + queries, .causal = causal, .dtype = dtype, .numerics = input.numerics});
  T5KeyMask visible;
  if (input.encoded != nullptr) visible = encoder_keys(*input.encoded, dtype, input.numerics);
  T5Residual stream(at::dropout(input.hidden, config.dropout_rate, is_training()),
                    {.numerics = input.numerics, .encoder = role_ == T5Role::kEncoder, .training = is_training()});
  at::Tensor position_bias;
  for (size_t i = 0; i < block->size(); ++i) {
    if (input.hidden_states != nullptr) input.hidden_states->push_back(stream.hidden());
    T5LayerCache* cache = input.cache == nullptr ? nullptr : &input.cache->layers_[i];
    T5AttentionImpl& attention = block_at(i).self_attention();
    if (!attention.relative_attention_bias.is_empty()) {
      position_bias = cache == nullptr ? bias(attention, queries, queries) : cached_bias(attention, queries, *cache);
    }
    const T5CrossKeys encoder =
        input.encoded == nullptr ? T5CrossKeys{} : block_at(i).cross_attention().cross_keys(input.encoded->hidden);
    block_at(i).forward(stream, {.keys = keys,
                                 .bias = position_bias,
                                 .encoder_keys = cache == nullptr ? &visible : &input.cache->encoder_keys_,
                                 .encoder = cache == nullptr ? &encoder : &cache->encoder,
                                 .cache = cache == nullptr ? nullptr : &cache->tokens,
                                 .numerics = input.numerics});
  }
  if (input.cache != nullptr) input.cache->length_ += queries;
  const at::Tensor normalised = stream.normalised(*final_layer_norm, config.layer_norm_epsilon);
  const at::Tensor output = at::dropout(normalised, config.dropout_rate, is_training());
  if (input.hidden_states != nullptr) input.hidden_states->push_back(output);
  return output;
}

T5Cache T5StackImpl::make_cache(const T5Encoded& encoded, const CacheRoom& room) {
  const at::NoGradGuard no_grad;
  T5Cache cache;
  cache.capacity_ = room.capacity;
  cache.rows_ = encoded.hidden.size(0) * room.rows_per_text;
  cache.encoder_keys_ = encoder_keys(encoded, encoded.hidden.scalar_type(), room.numerics);
  for (size_t i = 0; i < block->size(); ++i) {
    cache.layers_.push_back({.tokens = nn::KeyValueCache(room.capacity),
                             .encoder = block_at(i).cross_attention().cross_keys(encoded.hidden)});
  }
  return cache;
}

}  // namespace plimsoll::models
