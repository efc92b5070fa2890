#include "plimsoll/models/t5/attention.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>

#include "plimsoll/models/t5/relative_bias.h"
#include "plimsoll/ops/attention/attention.h"

namespace plimsoll::models {
namespace {

// As Hugging Face's modules compute it in FP16: every step is rounded, so a masked score may be -Inf, and a query that
// sees no other key gives NaN.
at::Tensor attend_in_steps(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const at::Tensor& bias) {
  const at::Tensor scores = at::matmul(query, key.transpose(2, 3)) + bias;
  return at::matmul(at::softmax(scores, -1, at::kFloat).to(scores.scalar_type()), value);
}

}  // namespace

T5AttentionImpl::T5AttentionImpl(const T5Config& settings, bool has_relative_bias)
    : config(settings), has_relative_bias_(has_relative_bias) {
  T5AttentionImpl::reset();
}

void T5AttentionImpl::reset() {
  const int64_t inner = config.num_heads * config.d_kv;
  q = register_module("q", T5Linear(config.d_model, inner));
  k = register_module("k", T5Linear(config.d_model, inner));
  v = register_module("v", T5Linear(config.d_model, inner));
  o = register_module("o", T5Linear(inner, config.d_model));
  query_key_value_ = T5Product({q, k, v});
  query_ = T5Product({q});
  key_value_ = T5Product({k, v});
  output_ = T5Product({o});
  if (has_relative_bias_) {
    const std::vector<int64_t> sizes = {config.relative_attention_num_buckets, config.num_heads};
    relative_attention_bias = register_module("relative_attention_bias", T5Weight(sizes));
  }
}

at::Tensor T5AttentionImpl::split_heads(const at::Tensor& x) const {
  return x.view({x.size(0), x.size(1), config.num_heads, config.d_kv}).transpose(1, 2);
}

at::Tensor T5AttentionImpl::attend(const Operands& operands, const T5KeyMask& keys, const at::Tensor& bias) const {
  const auto& [query, key, value] = operands;
  const double dropout = is_training() ? config.dropout_rate : 0.0;
  if (!keys.additive.defined()) {
    return ops::attention(query, key, value,
                          {.scale = 1.0,
                           .causal = keys.causal,
                           .key_lengths = keys.lengths,
                           .mask = keys.mask,
                           .bias = bias,
                           .dropout = dropout});
  }
  const at::Tensor sum = bias.defined() ? relative_bias_matrix(bias, query.size(2)) + keys.additive : keys.additive;
  if (keys.saturates) return attend_in_steps(query, key, value, sum);
  return ops::attention(query, key, value, {.scale = 1.0, .bias = sum, .dropout = dropout});
}

at::Tensor T5AttentionImpl::forward(const at::Tensor& x, const T5KeyMask& keys, const at::Tensor& bias,
                                    nn::KeyValueCache* cache) {
  const std::vector<at::Tensor> parts = query_key_value_.parts(x);
  Operands operands{split_heads(parts[0]), split_heads(parts[1]), split_heads(parts[2])};
  if (cache != nullptr) {
    const nn::CachedTokens all = cache->append(operands.key.transpose(1, 2), operands.value.transpose(1, 2));
    operands.key = all.key.transpose(1, 2);
    operands.value = all.value.transpose(1, 2);
  }
  return output_.joined(attend(operands, keys, bias).transpose(1, 2).flatten(2));
}

T5CrossKeys T5AttentionImpl::cross_keys(const at::Tensor& encoder_output) {
  const std::vector<at::Tensor> parts = key_value_.parts(encoder_output);
  return {split_heads(parts[0]), split_heads(parts[1])};
}

at::Tensor T5AttentionImpl::forward_cross(const at::Tensor& x, const T5KeyMask& keys, const T5CrossKeys& encoder) {
  // No key is hidden from some queries alone, so all that read one text are queries of one row.
  const int64_t batch = encoder.key.size(0);
  const at::Tensor queries = query_.joined(x).view({batch, -1, config.num_heads * config.d_kv});
  const at::Tensor read = attend({split_heads(queries), encoder.key, encoder.value}, keys, {});
  return output_.joined(read.transpose(1, 2).flatten(2).view({x.size(0), x.size(1), -1}));
}

}  // namespace plimsoll::models
