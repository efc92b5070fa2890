// A block of a T5: sub-layers that each read a norm of the residual stream and add to it.
#pragma once

#include <torch/nn/modules/container/modulelist.h>

#include "plimsoll/models/t5/attention.h"
#include "plimsoll/models/t5/feed_forward.h"
#include "plimsoll/models/t5/residual.h"

namespace plimsoll::models {

enum class T5Role : uint8_t { kEncoder, kDecoder };

// State that a decoder's layer keeps between steps.
struct T5LayerCache {
  nn::KeyValueCache tokens;
  T5CrossKeys encoder = {};
  at::Tensor bias = {};  // of one query at the last of all places, [1, heads, 1, capacity]
};

struct T5BlockInput {
  const T5KeyMask& keys;
  at::Tensor bias = {};                     // of self-attention
  const T5KeyMask* encoder_keys = nullptr;  // decoders
  const T5CrossKeys* encoder = nullptr;     // decoders
  nn::KeyValueCache* cache = nullptr;
  T5Numerics numerics = {};
};

// One sub-layer. Children: layer_norm, and SelfAttention, EncDecAttention or DenseReluDense.
class T5LayerImpl : public torch::nn::Cloneable<T5LayerImpl> {
 public:
  enum class Kind : uint8_t { kSelfAttention, kSelfAttentionWithBias, kCrossAttention, kFeedForward };

  T5LayerImpl(const T5Config& config, Kind kind);
  void reset() override;
  void forward(T5Residual& stream, const T5BlockInput& input);

  T5Config config;
  T5Weight layer_norm{nullptr};
  T5Attention attention{nullptr};
  T5DenseReluDense feed_forward{nullptr};

 private:
  Kind kind_;
};
TORCH_MODULE(T5Layer);

// Child: layer.N; of a decoder, N = 1 reads the encoder.
class T5BlockImpl : public torch::nn::Cloneable<T5BlockImpl> {
 public:
  T5BlockImpl(const T5Config& config, T5Role role, bool has_relative_bias);
  void reset() override;
  void forward(T5Residual& stream, const T5BlockInput& input);

  T5AttentionImpl& self_attention() { return *layer->at<T5LayerImpl>(0).attention; }
  T5AttentionImpl& cross_attention() { return *layer->at<T5LayerImpl>(1).attention; }
  T5DenseReluDenseImpl& feed_forward() { return *layer->at<T5LayerImpl>(layer->size() - 1).feed_forward; }

  T5Config config;
  torch::nn::ModuleList layer{nullptr};

 private:
  T5Role role_;
  bool has_relative_bias_;
};
TORCH_MODULE(T5Block);

}  // namespace plimsoll::models
