#include "plimsoll/nn/attention.h"

#include <cmath>

#include "plimsoll/nn/checks.h"
#include "plimsoll/nn/precision.h"
#include "plimsoll/ops/attention/attention.h"
#include "plimsoll/ops/attention/attention_composed.h"
#include "plimsoll/runtime/unexpected.h"

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

at::ScalarType dtype_for(const at::Tensor& x) { return scope_dtype(x.device().type()).value_or(x.scalar_type()); }

// Whether our kernel does it.
bool computes(const at::Tensor& x) { return x.is_cpu() && dtype_for(x) != at::kDouble; }

ops::Causal causal_of(AttentionMask mask) {
  switch (mask) {
    case AttentionMask::kNone:
    case AttentionMask::kPadding:
      return ops::Causal::kNone;
    case AttentionMask::kCausal:
      return ops::Causal::kTopLeft;
    case AttentionMask::kCausalBottomRight:
      return ops::Causal::kBottomRight;
  }
  runtime::unexpected("attention: mask", static_cast<int>(mask));
}

// Mask type over a cache, as in Transformer Engine: one type serves training and decoding.
AttentionMask mask_over_cache(AttentionMask mask) {
  return mask == AttentionMask::kCausal ? AttentionMask::kCausalBottomRight : mask;
}

}  // namespace

void check_window(int64_t window, AttentionMask mask) {
  TORCH_CHECK_VALUE(window == 0 || (window > 0 && causal_of(mask) != ops::Causal::kNone),
                    "attention: expected a window of 0, or of one key or more with a causal mask, got ", window,
                    causal_of(mask) == ops::Causal::kNone ? " without one" : "");
}

void check_groups(int64_t heads, int64_t groups) {
  TORCH_CHECK_VALUE(heads > 0 && groups > 0 && heads % groups == 0, "attention: expected num_gqa_groups that divides ",
                    heads, " heads, got ", groups);
}

DotProductAttentionImpl::DotProductAttentionImpl(int64_t heads, int64_t channels, DotProductAttentionOptions settings)
    : num_attention_heads(heads), kv_channels(channels), options(settings) {
  if (options.num_gqa_groups == 0) options.num_gqa_groups = heads;
  check_groups(heads, options.num_gqa_groups);
  check_size("attention", "kv_channels", channels, 1);
  // The weights that stay grow by 1 / (1 - dropout).
  TORCH_CHECK_VALUE(options.attention_dropout >= 0 && options.attention_dropout < 1,
                    "attention: expected attention_dropout in [0, 1), got ", options.attention_dropout);
  TORCH_CHECK_VALUE(std::isfinite(options.softmax_scale) && options.softmax_scale >= 0,
                    "attention: expected softmax_scale that is finite and > 0, or 0 for 1 / sqrt(kv_channels), got ",
                    options.softmax_scale);
  check_window(options.window, options.attn_mask_type);
}

void DotProductAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "plimsoll::nn::DotProductAttention(heads=" << num_attention_heads << ", kv_channels=" << kv_channels
         << ", groups=" << options.num_gqa_groups << ")";
}

at::Tensor DotProductAttentionImpl::forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                            const at::Tensor& attention_mask, at::IntArrayRef segments) {
  return attend(query, key, value, rules(attention_mask, options.attn_mask_type, segments));
}

at::Tensor DotProductAttentionImpl::attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                           const ops::AttentionOptions& rules) const {
  check_heads(query, num_attention_heads, kv_channels);
  check_heads(key, options.num_gqa_groups, kv_channels);
  check_heads(value, options.num_gqa_groups, kv_channels);
  const at::ScalarType output = dtype_for(query);
  // FP16 does not hold what a cache of BF16 does; FP32 holds both.
  const at::ScalarType dtype = output == at::kHalf && key.scalar_type() == at::kBFloat16 ? at::kFloat : output;
  const at::Tensor q = heads_first(query.to(dtype), options.qkv_format);
  const at::Tensor k = heads_first(key.to(dtype), options.qkv_format);
  const at::Tensor v = heads_first(value.to(dtype), options.qkv_format);
  const at::Tensor attended = computes(q) ? ops::attention(q, k, v, rules) : ops::torch_attention(q, k, v, rules);
  return heads_last(attended, options.qkv_format).flatten(2).to(output);
}

at::Tensor DotProductAttentionImpl::forward_cached(const at::Tensor& query, const CachedTokens& tokens,
                                                   const at::Tensor& attention_mask) {
  TORCH_CHECK(options.qkv_format == Layout::kBshd, "attention: expected the layout bshd with a cache, got sbhd");
  const ops::AttentionOptions over_cache = rules(attention_mask, mask_over_cache(options.attn_mask_type));
  if (!tokens.key_scale.defined()) return attend(query, tokens.key, tokens.value, over_cache);
  check_heads(query, num_attention_heads, kv_channels);
  check_heads(tokens.key, options.num_gqa_groups, kv_channels);
  check_heads(tokens.value, options.num_gqa_groups, kv_channels);
  const at::Tensor q = heads_first(query.to(dtype_for(query)), Layout::kBshd);
  const at::Tensor attended =
      ops::attention_over_codes(q, {heads_first(tokens.key, Layout::kBshd), tokens.key_scale},
                                {heads_first(tokens.value, Layout::kBshd), tokens.value_scale}, over_cache);
  return heads_last(attended, Layout::kBshd).flatten(2);
}

bool DotProductAttentionImpl::packs(const at::Tensor& qkv, bool interleaved) const {
  return computes(qkv) && (!interleaved || options.num_gqa_groups == num_attention_heads);
}

at::Tensor DotProductAttentionImpl::forward_packed(const at::Tensor& qkv, const at::Tensor& attention_mask,
                                                   bool interleaved, at::IntArrayRef segments) {
  const int64_t groups = options.num_gqa_groups;
  check_heads(qkv, num_attention_heads + 2 * groups, kv_channels);
  const auto batch_first = [&](const at::Tensor& x) {
    return options.qkv_format == Layout::kSbhd ? x.transpose(0, 1) : x;
  };
  const at::Tensor attended =
      ops::attention_packed(batch_first(qkv.to(dtype_for(qkv))), {num_attention_heads, groups, interleaved},
                            rules(attention_mask, options.attn_mask_type, segments));
  return batch_first(attended).flatten(2);
}

ops::AttentionOptions DotProductAttentionImpl::rules(const at::Tensor& attention_mask, AttentionMask mask_type,
                                                     at::IntArrayRef segments) const {
  const bool padding = mask_type == AttentionMask::kPadding;
  TORCH_CHECK(!padding || (attention_mask.defined() && attention_mask.scalar_type() == at::kBool),
              "attention: expected a bool attention_mask for the padding mask, got ",
              attention_mask.defined() ? c10::toString(attention_mask.scalar_type()) : "none");
  return {.scale = options.softmax_scale,
          .causal = causal_of(mask_type),
          .mask = padding ? attention_mask : at::Tensor(),
          .dropout = is_training() ? options.attention_dropout : 0.0,
          .window = options.window,
          .segments = segments.vec()};
}

}  // namespace plimsoll::nn
