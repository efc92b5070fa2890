#include "plimsoll/nn/multihead_attention.h"

#include <ATen/ops/split_with_sizes.h>

#include "plimsoll/nn/checks.h"
#include "plimsoll/nn/report_values.h"

namespace plimsoll::nn {

MultiheadAttentionImpl::MultiheadAttentionImpl(int64_t hidden, int64_t heads, MultiheadAttentionOptions settings)
    : hidden_size(hidden), num_attention_heads(heads), options(settings) {
  check_size("attention", "hidden_size", hidden, 1);
  check_size("attention", "kv_channels", options.kv_channels, 0);
  TORCH_CHECK_VALUE(heads > 0 && (options.kv_channels > 0 || hidden % heads == 0),
                    "attention: expected a number of heads that divides ", hidden, ", got ", heads);
  if (options.kv_channels == 0) options.kv_channels = hidden / heads;
  if (options.num_gqa_groups == 0) options.num_gqa_groups = heads;
  check_groups(heads, options.num_gqa_groups);
  if (!options.fuse_qkv_params) options.qkv_weight_interleaved = false;
  MultiheadAttentionImpl::reset();
}

void MultiheadAttentionImpl::reset() {
  const int64_t query_rows = num_attention_heads * options.kv_channels;
  const int64_t key_rows = options.num_gqa_groups * options.kv_channels;
  const bool fused = options.fuse_qkv_params;
  const std::vector<ParameterPart> key_value_parts = {{"key", key_rows}, {"value", key_rows}};
  const auto norm_linear = [&](int64_t rows, std::vector<ParameterPart> parts) {
    return LayerNormLinear(hidden_size, rows,
                           LayerNormLinearOptions{.eps = options.layernorm_epsilon,
                                                  .bias = options.bias,
                                                  .normalization = options.normalization,
                                                  .zero_centered_gamma = options.zero_centered_gamma,
                                                  .parameters_split = std::move(parts)});
  };
  const auto linear = [&](int64_t rows, std::vector<ParameterPart> parts) {
    return Linear(hidden_size, rows, LinearOptions{.bias = options.bias, .parameters_split = std::move(parts)});
  };

  if (options.attention_type == AttentionType::kSelf) {
    const int64_t rows = query_rows + 2 * key_rows;
    std::vector<ParameterPart> parts;
    if (!fused) parts = {{"query", query_rows}, {"key", key_rows}, {"value", key_rows}};
    if (options.input_layernorm) {
      layernorm_qkv = register_module("layernorm_qkv", norm_linear(rows, parts));
    } else {
      qkv = register_module("qkv", linear(rows, parts));
    }
  } else {
    if (options.input_layernorm) {
      layernorm_query = register_module("layernorm_query", norm_linear(query_rows, {}));
    } else {
      query_layer = register_module("query_layer", linear(query_rows, {}));
    }
    key_value =
        register_module("key_value", linear(2 * key_rows, fused ? std::vector<ParameterPart>{} : key_value_parts));
  }
  core_attention = register_module(
      "core_attention", DotProductAttention(num_attention_heads, options.kv_channels,
                                            DotProductAttentionOptions{.num_gqa_groups = options.num_gqa_groups,
                                                                       .attention_dropout = options.attention_dropout,
                                                                       .attn_mask_type = options.attn_mask_type,
                                                                       .qkv_format = options.qkv_format,
                                                                       .window = options.window}));
  // Attention keeps its output for its own backward pass, so proj keeps that instead of codes of it.
  proj = register_module("proj", Linear(query_rows, hidden_size,
                                        LinearOptions{.bias = options.bias, .save_input = ops::SaveInput::kInput}));
}

// [a, b, rows] -> for each of `heads`: [a, b, heads, channels].
static std::vector<at::Tensor> split_heads(const at::Tensor& x, const std::vector<int64_t>& heads, int64_t groups,
                                           bool interleaved) {
  const int64_t total = std::accumulate(heads.begin(), heads.end(), int64_t{0});
  const int64_t channels = x.size(2) / total;
  if (!interleaved) return x.view({x.size(0), x.size(1), total, channels}).split_with_sizes(heads, 2);
  std::vector<int64_t> per_group = heads;
  for (int64_t& count : per_group) count /= groups;
  const at::Tensor grouped = x.view({x.size(0), x.size(1), groups, total / groups, channels});
  std::vector<at::Tensor> parts = grouped.split_with_sizes(per_group, 3);
  for (at::Tensor& part : parts) part = part.flatten(2, 3);
  return parts;
}

ops::NormOutput MultiheadAttentionImpl::project_packed(const MultiheadAttentionInput& input) {
  ops::NormOutput projected;
  if (options.input_layernorm) {
    projected = layernorm_qkv->forward(input.hidden, input.residual, input.is_first_microbatch);
  } else {
    projected.output = qkv->forward(input.hidden, input.is_first_microbatch);
  }
  if (!options.input_layernorm) return projected;
  const int64_t groups = options.num_gqa_groups;
  report_parts(layernorm_qkv->path(), projected.output,
               {.places = {"query", "key", "value"},
                .split = [heads = std::vector{num_attention_heads, groups, groups}, groups,
                          interleaved = options.qkv_weight_interleaved](const at::Tensor& whole) {
                  return split_heads(whole, heads, groups, interleaved);
                }});
  return projected;
}

MultiheadAttentionImpl::Projected MultiheadAttentionImpl::split_packed(const ops::NormOutput& projected) const {
  const int64_t groups = options.num_gqa_groups;
  std::vector<at::Tensor> parts =
      split_heads(projected.output, {num_attention_heads, groups, groups}, groups, options.qkv_weight_interleaved);
  return {parts[0], parts[1], parts[2], projected.sum};
}

MultiheadAttentionImpl::Projected MultiheadAttentionImpl::project_cross(const MultiheadAttentionInput& input) {
  TORCH_CHECK(input.encoder_output.defined(), "attention: expected an encoder_output for cross-attention, got none");
  ops::NormOutput query;
  if (options.input_layernorm) {
    query = layernorm_query->forward(input.hidden, input.residual, input.is_first_microbatch);
  } else {
    query.output = query_layer->forward(input.hidden, input.is_first_microbatch);
  }
  const int64_t groups = options.num_gqa_groups;
  std::vector<at::Tensor> parts = split_heads(key_value->forward(input.encoder_output, input.is_first_microbatch),
                                              {groups, groups}, groups, options.qkv_weight_interleaved);
  return {query.output.unflatten(2, {num_attention_heads, options.kv_channels}), parts[0], parts[1], query.sum};
}

ops::NormOutput MultiheadAttentionImpl::forward(const MultiheadAttentionInput& input) {
  TORCH_CHECK(input.hidden.dim() == 3 && input.hidden.size(2) == hidden_size,
              "attention: expected hidden [seq, batch, ", hidden_size, "], got ", input.hidden.sizes());
  TORCH_CHECK(options.input_layernorm || !input.residual.defined(),
              "attention: expected input_layernorm where there is a residual, got none");
  if (options.attention_type == AttentionType::kCross) return attend(project_cross(input), input);
  const ops::NormOutput packed = project_packed(input);
  const bool interleaved = options.qkv_weight_interleaved;
  if (input.cache != nullptr || !core_attention->packs(packed.output, interleaved)) {
    return attend(split_packed(packed), input);
  }
  const int64_t parts = num_attention_heads + 2 * options.num_gqa_groups;
  const at::Tensor attended = core_attention->forward_packed(packed.output.unflatten(2, {parts, options.kv_channels}),
                                                             input.attention_mask, interleaved);
  return {proj->forward(attended, input.is_first_microbatch), packed.sum};
}

ops::NormOutput MultiheadAttentionImpl::attend(const Projected& projected, const MultiheadAttentionInput& input) {
  TORCH_CHECK(input.cache == nullptr || options.qkv_format == Layout::kBshd,
              "attention: expected the layout bshd with a cache, got sbhd");
  const at::Tensor attended =
      input.cache == nullptr
          ? core_attention->forward(projected.query, projected.key, projected.value, input.attention_mask)
          : core_attention->forward_cached(projected.query, input.cache->append(projected.key, projected.value),
                                           input.attention_mask);
  return {proj->forward(attended, input.is_first_microbatch), projected.sum};
}

}  // namespace plimsoll::nn
