// Scaled dot-product attention, FP32 inside: ops::attention on the CPU, torch's elsewhere.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string_view>

#include "plimsoll/nn/key_value_cache.h"
#include "plimsoll/ops/attention/attention.h"

namespace plimsoll::nn {

enum class AttentionMask : uint8_t {
  kNone,
  kCausal,             // query i sees keys 0 .. i; an attention_mask is ignored
  kCausalBottomRight,  // query i sees keys 0 .. i + keys - queries; an attention_mask is ignored
  kPadding,            // attention_mask says which keys each query must not see
};

// Order of the first two dimensions of hidden states, queries, keys and values: s = sequence, b = batch.
enum class Layout : uint8_t { kSbhd, kBshd };

struct DotProductAttentionOptions {
  int64_t num_gqa_groups = 0;  // heads of keys and values; 0: as many as of queries
  double attention_dropout = 0.0;
  AttentionMask attn_mask_type = AttentionMask::kCausal;
  Layout qkv_format = Layout::kSbhd;
  double softmax_scale = 0.0;  // 0: 1 / sqrt(head_dim)
  int64_t window = 0;          // with a causal mask: the last keys that a query sees, its own included; 0: all
};

// Throws c10::ValueError unless groups, one or more, divide heads.
void check_groups(int64_t heads, int64_t groups);

class DotProductAttentionImpl : public torch::nn::Cloneable<DotProductAttentionImpl> {
 public:
  DotProductAttentionImpl(int64_t num_attention_heads, int64_t kv_channels, DotProductAttentionOptions options = {});
  void reset() override {}
  void pretty_print(std::ostream& stream) const override;

  // query [seq, batch, heads, kv_channels] (kBshd: [batch, seq, ...]), key and value alike with their own seq and
  // groups for heads. attention_mask: bool, true = masked, broadcastable to [batch, heads, queries, keys]; needed by
  // kPadding. A query that may see no key gives 0. segments: as in ops::AttentionOptions. Returns [seq, batch, heads *
  // kv_channels] ([batch, seq, ...]) in the scope's high-precision dtype, outside a scope in that of the query.
  at::Tensor forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const at::Tensor& attention_mask = {}, at::IntArrayRef segments = {});

  // The same over a cache: kBshd, key and value are those of all tokens so far, of which the queries are the last.
  // kCausal is then kCausalBottomRight.
  at::Tensor forward_cached(const at::Tensor& query, const CachedTokens& tokens, const at::Tensor& attention_mask = {});

  // The same on the fused projection [seq, batch, heads + 2 groups, kv_channels] (kBshd: [batch, seq, ...]), whose
  // gradient is then one tensor. interleaved: as in ops::PackedHeads.
  at::Tensor forward_packed(const at::Tensor& qkv, const at::Tensor& attention_mask = {}, bool interleaved = false,
                            at::IntArrayRef segments = {});
  // Whether forward_packed takes such a tensor.
  bool packs(const at::Tensor& qkv, bool interleaved) const;

  int64_t num_attention_heads, kv_channels;
  DotProductAttentionOptions options;

 private:
  ops::AttentionOptions rules(const at::Tensor& attention_mask, AttentionMask mask_type,
                              at::IntArrayRef segments = {}) const;
  at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const ops::AttentionOptions& rules) const;
};
TORCH_MODULE(DotProductAttention);

}  // namespace plimsoll::nn
