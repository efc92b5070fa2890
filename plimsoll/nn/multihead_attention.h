// Attention with its projections: norm, query, key and value in one product, attention, output projection.
// Children: layernorm_qkv (qkv without input_layernorm), core_attention, proj; cross-attention has layernorm_query
// (query_layer) and key_value in place of the first.
#pragma once

#include <optional>

#include "plimsoll/nn/attention.h"
#include "plimsoll/nn/key_value_cache.h"
#include "plimsoll/nn/layer_norm_linear.h"
#include "plimsoll/nn/linear.h"

namespace plimsoll::nn {

enum class AttentionType : uint8_t { kSelf, kCross };

struct MultiheadAttentionOptions {
  int64_t kv_channels = 0;     // of one head; 0: hidden_size / heads
  int64_t num_gqa_groups = 0;  // 0: as many as heads
  double attention_dropout = 0.1;
  double layernorm_epsilon = 1e-5;
  AttentionMask attn_mask_type = AttentionMask::kCausal;
  int64_t window = 0;  // DotProductAttention
  AttentionType attention_type = AttentionType::kSelf;
  bool input_layernorm = false;
  Normalization normalization = Normalization::kLayerNorm;
  bool zero_centered_gamma = false;
  bool fuse_qkv_params = false;  // one `weight` in place of query_weight, key_weight, value_weight
  // Fused only. Rows of the weight: [group, queries of the group then its key then its value, channel]; false: all of
  // q, then k, then v. Cross-attention: key and value of each group; false: k, then v.
  bool qkv_weight_interleaved = true;
  bool bias = true;
  Layout qkv_format = Layout::kSbhd;
};

struct MultiheadAttentionInput {
  at::Tensor hidden = {};          // [seq, batch, hidden_size] (kBshd: [batch, seq, hidden_size])
  at::Tensor residual = {};        // undefined, or added to hidden before the norm
  at::Tensor encoder_output = {};  // cross-attention: what keys and values come from
  at::Tensor attention_mask = {};  // DotProductAttention
  std::optional<bool> is_first_microbatch = std::nullopt;
  KeyValueCache* cache = nullptr;  // self-attention, kBshd: keys and values go there and are read from there
};

class MultiheadAttentionImpl : public torch::nn::Cloneable<MultiheadAttentionImpl> {
 public:
  MultiheadAttentionImpl(int64_t hidden_size, int64_t num_attention_heads, MultiheadAttentionOptions options = {});
  void reset() override;

  // output in the shape of hidden; sum as in ops::NormOutput.
  ops::NormOutput forward(const MultiheadAttentionInput& input);

  int64_t hidden_size, num_attention_heads;
  MultiheadAttentionOptions options;
  LayerNormLinear layernorm_qkv{nullptr}, layernorm_query{nullptr};
  Linear qkv{nullptr}, query_layer{nullptr}, key_value{nullptr}, proj{nullptr};
  DotProductAttention core_attention{nullptr};

 private:
  struct Projected {
    at::Tensor query, key, value;  // [.., .., heads or groups, channels]
    at::Tensor sum;
  };
  // [.., .., (heads + 2 groups) * channels]
  ops::NormOutput project_packed(const MultiheadAttentionInput& input);
  Projected split_packed(const ops::NormOutput& projected) const;
  Projected project_cross(const MultiheadAttentionInput& input);
  ops::NormOutput attend(const Projected& projected, const MultiheadAttentionInput& input);
};
TORCH_MODULE(MultiheadAttention);

}  // namespace plimsoll::nn
