#include "plimsoll/nn/attention.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include "plimsoll/nn/precision.h"
#include "plimsoll/ops/attention.h"

namespace plimsoll::nn {
namespace {

// [seq, batch, heads, dim] or [batch, seq, heads, dim] -> [batch, heads, seq, dim].
at::Tensor heads_first(const at::Tensor& x, Layout layout) {
  return layout == Layout::kSbhd ? x.permute({1, 2, 0, 3}) : x.transpose(1, 2);
}

at::Tensor heads_last(const at::Tensor& x, Layout layout) {
  return layout == Layout::kSbhd ? x.permute({2, 0, 1, 3}) : x.transpose(1, 2);
}

void check_heads(const at::Tensor& x, int64_t heads, int64_t channels) {
  TORCH_CHECK(x.dim() == 4 && x.size(2) == heads && x.size(3) == channels,
              "attention: expected [seq, batch, heads, channels] with ", heads, " heads of ", channels,
              " channels, got ", x.sizes());
}

}  // namespace

DotProductAttentionImpl::DotProductAttentionImpl(int64_t heads, int64_t channels, DotProductAttentionOptions settings)
    : num_attention_heads(heads), kv_channels(channels), options(settings) {
  if (options.num_gqa_groups == 0) options.num_gqa_groups = heads;
  TORCH_CHECK_VALUE(heads > 0 && options.num_gqa_groups > 0 && heads % options.num_gqa_groups == 0,
                    "attention: expected num_gqa_groups that divides ", heads, " heads, got ", options.num_gqa_groups);
}

void DotProductAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "plimsoll::nn::DotProductAttention(heads=" << num_attention_heads << ", kv_channels=" << kv_channels
         << ", groups=" << options.num_gqa_groups << ")";
}

at::Tensor DotProductAttentionImpl::forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                            const at::Tensor& attention_mask) {
  check_heads(query, num_attention_heads, kv_channels);
  check_heads(key, options.num_gqa_groups, kv_channels);
  check_heads(value, options.num_gqa_groups, kv_channels);
  const at::ScalarType dtype = scope_dtype().value_or(query.scalar_type());
  const at::Tensor q = heads_first(query.to(dtype), options.qkv_format);
  const at::Tensor k = heads_first(key.to(dtype), options.qkv_format);
  const at::Tensor v = heads_first(value.to(dtype), options.qkv_format);

  const int64_t queries = q.size(2), keys = k.size(2);
  bool is_causal = false;
  std::optional<at::Tensor> visible;
  if (options.attn_mask_type == AttentionMask::kPadding) {
    TORCH_CHECK(attention_mask.defined() && attention_mask.scalar_type() == at::kBool,
                "attention: expected a bool attention_mask for the padding mask, got ",
                attention_mask.defined() ? c10::toString(attention_mask.scalar_type()) : "none");
    visible = attention_mask.logical_not();
  } else if (options.attn_mask_type == AttentionMask::kCausal && queries == keys) {
    is_causal = true;  // torch aligns this one to the first key
  } else if (options.attn_mask_type == AttentionMask::kCausal && queries > 1) {
    visible = at::ones({queries, keys}, q.options().dtype(at::kBool)).tril(keys - queries);
  }
  const double dropout = is_training() ? options.attention_dropout : 0.0;
  const bool grouped = options.num_gqa_groups != num_attention_heads;
  const bool plain = !visible && dropout == 0 && !grouped && q.is_cpu() && q.numel() > 0 && k.numel() > 0;
  const at::Tensor attended =
      plain && dtype != at::kFloat && dtype != at::kDouble
          ? ops::attention(q, k, v, {.scale = options.softmax_scale, .causal = is_causal})
          : at::scaled_dot_product_attention(
                q, k, v, visible, dropout, is_causal,
                options.softmax_scale > 0 ? std::optional(options.softmax_scale) : std::nullopt, grouped);
  return heads_last(attended, options.qkv_format).flatten(2);
}

}  // namespace plimsoll::nn
