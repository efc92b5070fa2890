#include "plimsoll/models/t5/block.h"

#include <ATen/ops/dropout.h>

namespace plimsoll::models {

T5LayerImpl::T5LayerImpl(const T5Config& settings, Kind kind) : config(settings), kind_(kind) { T5LayerImpl::reset(); }

void T5LayerImpl::reset() {
  if (kind_ == Kind::kFeedForward) {
    feed_forward = register_module("DenseReluDense", T5DenseReluDense(config));
  } else if (kind_ == Kind::kCrossAttention) {
    attention = register_module("EncDecAttention", T5Attention(config, false));
  } else {
    attention = register_module("SelfAttention", T5Attention(config, kind_ == Kind::kSelfAttentionWithBias));
  }
  layer_norm = register_module("layer_norm", T5Weight(std::vector<int64_t>{config.d_model}));
}

void T5LayerImpl::forward(T5Residual& stream, const T5BlockInput& input) {
  const at::Tensor x = stream.normalised(*layer_norm, config.layer_norm_epsilon);
  at::Tensor y;
  if (kind_ == Kind::kFeedForward) {
    y = feed_forward(x, input.numerics);
  } else if (kind_ == Kind::kCrossAttention) {
    y = attention->forward_cross(x, *input.encoder_keys, *input.encoder);
  } else {
    y = attention->forward(x, input.keys, input.bias, input.cache);
  }
  stream.add(at::dropout(y, config.dropout_rate, is_training()));
}

T5BlockImpl::T5BlockImpl(const T5Config& settings, T5Role role, bool has_relative_bias)
    : config(settings), role_(role), has_relative_bias_(has_relative_bias) {
  T5BlockImpl::reset();
}

void T5BlockImpl::reset() {
  using Kind = T5LayerImpl::Kind;
  layer = register_module("layer", torch::nn::ModuleList());
  layer->push_back(T5Layer(config, has_relative_bias_ ? Kind::kSelfAttentionWithBias : Kind::kSelfAttention));
  if (role_ == T5Role::kDecoder) layer->push_back(T5Layer(config, Kind::kCrossAttention));
  layer->push_back(T5Layer(config, Kind::kFeedForward));
}

void T5BlockImpl::forward(T5Residual& stream, const T5BlockInput& input) {
  for (size_t i = 0; i < layer->size(); ++i) layer->at<T5LayerImpl>(i).forward(stream, input);
}

}  // namespace plimsoll::models
