// Multi-head attention as in T5: no biases in its products, no scale of the scores, a number for each distance instead.
#pragma once

#include "plimsoll/models/t5/config.h"
#include "plimsoll/models/t5/key_mask.h"
#include "plimsoll/models/t5/product.h"
#include "plimsoll/models/t5/weight.h"
#include "plimsoll/nn/key_value_cache.h"

namespace plimsoll::models {

// Keys and values of an encoder's output, computed once for all steps of a decoder.
struct T5CrossKeys {
  at::Tensor key, value;  // [batch, heads, keys, d_kv]
};

// Children: q, k, v, o, and relative_attention_bias where the layer holds a table.
class T5AttentionImpl : public torch::nn::Cloneable<T5AttentionImpl> {
 public:
  T5AttentionImpl(const T5Config& config, bool has_relative_bias);
  void reset() override;

  // Self-attention of x [batch, seq, d_model]. bias: [1, heads, seq, keys]. With a cache the keys are those of all
  // tokens so far, without gradients.
  at::Tensor forward(const at::Tensor& x, const T5KeyMask& keys, const at::Tensor& bias,
                     nn::KeyValueCache* cache = nullptr);

  T5CrossKeys cross_keys(const at::Tensor& encoder_output);
  // Attention of x [rows, seq, d_model] to what an encoder has said; rows is a multiple of its batch, and as many in a
  // row as that read one text.
  at::Tensor forward_cross(const at::Tensor& x, const T5KeyMask& keys, const T5CrossKeys& encoder);

  // Products of forward(), and those of cross_keys() and forward_cross().
  std::vector<T5Product> self_products() const { return {query_key_value_, output_}; }
  std::vector<T5Product> cross_products() const { return {query_, key_value_, output_}; }

  T5Config config;
  T5Linear q{nullptr}, k{nullptr}, v{nullptr}, o{nullptr};
  T5Weight relative_attention_bias{nullptr};  // [buckets, heads]; or none

 private:
  friend class T5TeamStep;
  struct Operands {
    at::Tensor query, key, value;  // [batch, heads, queries or keys, d_kv]
  };
  at::Tensor split_heads(const at::Tensor& x) const;  // [batch, seq, heads * d_kv] -> [batch, heads, seq, d_kv]
  at::Tensor attend(const Operands& operands, const T5KeyMask& keys, const at::Tensor& bias) const;

  bool has_relative_bias_;
  T5Product query_key_value_, query_, key_value_, output_;
};
TORCH_MODULE(T5Attention);

}  // namespace plimsoll::models
