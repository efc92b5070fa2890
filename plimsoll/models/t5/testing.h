// Models and texts of T5's tests.
#pragma once

#include <ATen/ops/randint.h>

#include <vector>

#include "plimsoll/models/t5/model.h"
#include "plimsoll/nn/testing.h"

namespace plimsoll::models::testing {

inline T5ForConditionalGeneration small_t5(T5Config change = {}) {
  at::manual_seed(3);
  change.vocab_size = 90;
  change.d_model = 32;
  change.d_kv = 8;
  change.d_ff = 40;
  change.num_layers = change.num_decoder_layers = 2;
  change.num_heads = 3;
  T5ForConditionalGeneration model(change);
  model->reset_parameters();
  model->eval();
  return model;
}

// Products by codes of the model's weights.
inline void hold_codes(T5ForConditionalGenerationImpl& model, ops::CodeKind kind) {
  std::vector<T5LinearImpl*> layers = {&model.head()};
  for (const auto& part : model.modules(/*include_self=*/false)) {
    if (auto* layer = dynamic_cast<T5LinearImpl*>(part.get()); layer != nullptr && layer != &model.head()) {
      layers.push_back(layer);
    }
  }
  for (T5LinearImpl* layer : layers) layer->quantize({.weight = layer->weight().detach().clone()}, kind);
}

// Logits, relative to the largest, where attention sums its keys in another order: in each of four attentions at most 12
// keys and 10 roundings of a softmax, on either side.
inline constexpr double kReordered = 4 * 2 * (12 + 10) * 0x1p-24;

inline at::Tensor t5_tokens(int64_t rows, int64_t length) { return at::randint(2, 90, {rows, length}, at::kLong); }

// v1.0; gated with a head of its own; a table of biases in each layer.
inline const std::vector<T5Config>& t5_kinds() {
  static const std::vector<T5Config> all = {
      {},
      {.feed_forward = kernels::Activation::kGeglu, .tie_word_embeddings = false, .scale_decoder_outputs = false},
      {.relative_bias_in_each_layer = true, .feed_forward = kernels::Activation::kSwiglu}};
  return all;
}

}  // namespace plimsoll::models::testing
