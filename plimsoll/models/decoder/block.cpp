#include "plimsoll/models/decoder/block.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/split_with_sizes.h>

#include "plimsoll/models/computed_dtype.h"
#include "plimsoll/nn/checkpoint.h"
#include "plimsoll/nn/report_values.h"
#include "plimsoll/ops/activation/activation.h"

namespace plimsoll::models {
namespace {

nn::Norm norm_over(int64_t channels, const DecoderConfig& config) {
  return nn::Norm(channels, ops::NormOptions{.kind = config.normalization,
                                             .zero_centered = config.zero_centered_norms,
                                             .epsilon = config.norm_epsilon});
}

}  // namespace

DecoderAttentionImpl::DecoderAttentionImpl(const DecoderConfig& settings, Reach of) : config(settings), reach(of) {
  DecoderAttentionImpl::reset();
}

void DecoderAttentionImpl::reset() {
  const int64_t rows = config.heads * config.head_dim;
  layernorm_qkv = register_module(
      "layernorm_qkv",
      nn::LayerNormLinear(config.dim, rows + 2 * config.groups * config.head_dim,
                          nn::LayerNormLinearOptions{.eps = config.norm_epsilon,
                                                     .bias = config.qkv_bias,
                                                     .normalization = config.normalization,
                                                     .zero_centered_gamma = config.zero_centered_norms}));
  if (config.norms_heads) {
    query_norm = register_module("query_norm", norm_over(config.head_dim, config));
    key_norm = register_module("key_norm", norm_over(config.head_dim, config));
  }
  core_attention = register_module("core_attention",
                                   nn::DotProductAttention(config.heads, config.head_dim,
                                                           nn::DotProductAttentionOptions{
                                                               .num_gqa_groups = config.groups,
                                                               .attention_dropout = config.attention_dropout,
                                                               .attn_mask_type = nn::AttentionMask::kCausal,
                                                               .qkv_format = nn::Layout::kBshd,
                                                               .softmax_scale = config.attention_scale,
                                                               .window = reach == Reach::kSliding ? config.window : 0,
                                                           }));
  // Attention keeps its output for its own backward pass, so proj keeps that instead of codes of it.
  proj = register_module(
      "proj", nn::Linear(rows, config.dim,
                         nn::LinearOptions{.bias = config.output_bias, .save_input = ops::SaveInput::kInput}));
}

void DecoderAttentionImpl::report_normed(std::string_view place, const at::Tensor& values) const {
  nn::report_parts(layernorm_qkv->path(), values, {.places = {place}, .split = [](const at::Tensor& whole) {
                                                     return std::vector<at::Tensor>{whole};
                                                   }});
}

at::Tensor DecoderAttentionImpl::attend(const at::Tensor& projected, const DecoderBlockInput& input) {
  at::Tensor packed = projected.unflatten(2, {config.heads + 2 * config.groups, config.head_dim});
  const std::vector<int64_t> heads = {config.heads, config.groups, config.groups};
  nn::report_parts(layernorm_qkv->path(), packed,
                   {.places = {"query", "key", "value"},
                    .split = [heads](const at::Tensor& whole) { return whole.split_with_sizes(heads, 2); }});
  const bool turns = input.turns.cosine.defined();
  if (turns && !config.norms_heads) {
    packed = ops::rotary(packed, input.turns, {.position_dim = 1, .copied_heads = config.groups});
  }
  if (!config.norms_heads && input.cache == nullptr && core_attention->packs(packed, /*interleaved=*/false)) {
    return core_attention->forward_packed(packed, {}, /*interleaved=*/false, input.segments);
  }
  std::vector<at::Tensor> parts = packed.split_with_sizes(heads, 2);
  if (config.norms_heads) {
    parts[0] = query_norm->forward(parts[0]);
    parts[1] = key_norm->forward(parts[1]);
    report_normed("normed_query", parts[0]);
    report_normed("normed_key", parts[1]);
    if (turns) {
      for (at::Tensor* part : {&parts[0], &parts[1]}) *part = ops::rotary(*part, input.turns, {.position_dim = 1});
    }
  }
  if (input.cache == nullptr) return core_attention->forward(parts[0], parts[1], parts[2], {}, input.segments);
  return core_attention->forward_cached(parts[0], input.cache->append(parts[1], parts[2]));
}

ops::NormOutput DecoderAttentionImpl::forward(const nn::ResidualStream& stream, const DecoderBlockInput& input) {
  const ops::NormOutput projected = layernorm_qkv->forward(stream.hidden, stream.residual, input.is_first_microbatch);
  return {proj->forward(attend(projected.output, input), input.is_first_microbatch), projected.sum};
}

DecoderBlockImpl::DecoderBlockImpl(const DecoderConfig& settings, Reach of) : config(settings), reach(of) {
  DecoderBlockImpl::reset();
}

void DecoderBlockImpl::reset() {
  self_attention = register_module("self_attention", DecoderAttention(config, reach));
  layernorm_mlp = register_module(
      "layernorm_mlp", nn::LayerNormMlp(config.dim, config.ffn_dim,
                                        nn::LayerNormMlpOptions{.eps = config.norm_epsilon,
                                                                .bias = config.mlp_bias,
                                                                .normalization = config.normalization,
                                                                .activation = std::string(ops::name(config.activation)),
                                                                .zero_centered_gamma = config.zero_centered_norms}));
  if (config.norms_branches) {
    attention_norm = register_module("attention_norm", norm_over(config.dim, config));
    mlp_norm = register_module("mlp_norm", norm_over(config.dim, config));
  }
}

at::Tensor DecoderBlockImpl::branch(const at::Tensor& output, nn::Norm& norm) const {
  const at::Tensor dropped = at::dropout(output, config.hidden_dropout, is_training());
  return config.norms_branches ? norm->forward(dropped) : dropped;
}

nn::ResidualStream DecoderBlockImpl::advance(nn::ResidualStream stream, const DecoderBlockInput& input) {
  if (hooks.before) hooks.before();
  stream = checkpoint_activations ? run_checkpointed(stream, input) : run(std::move(stream), input);
  if (hooks.after) hooks.after({stream.hidden, stream.residual});
  return stream;
}

nn::ResidualStream DecoderBlockImpl::run(nn::ResidualStream stream, const DecoderBlockInput& input) {
  stream.hidden = stream.hidden.to(computed_dtype(self_attention->proj->weight.parts().front()));
  const ops::NormOutput attended = self_attention->forward(stream, input);
  const at::Tensor before = stream.residual.defined() ? attended.sum : stream.hidden;
  const at::Tensor attention = branch(attended.output, attention_norm);
  if (config.parallel_residual) {
    const at::Tensor mlp = layernorm_mlp->forward(before, input.is_first_microbatch);
    return {.hidden = branch(mlp, mlp_norm) + attention, .residual = before};
  }
  const ops::NormOutput mlp = layernorm_mlp->forward(attention, before, input.is_first_microbatch);
  return {.hidden = branch(mlp.output, mlp_norm), .residual = mlp.sum};
}

nn::ResidualStream DecoderBlockImpl::run_checkpointed(const nn::ResidualStream& stream,
                                                      const DecoderBlockInput& input) {
  const auto segment = [this, input](const std::vector<at::Tensor>& differentiable) {
    const nn::ResidualStream output = run({.hidden = differentiable[0], .residual = differentiable[1]}, input);
    return std::vector{output.hidden, output.residual};
  };
  const std::vector<at::Tensor> outputs = nn::checkpoint(segment, {stream.hidden, stream.residual}, parameters());
  return {.hidden = outputs[0], .residual = outputs[1]};
}

}  // namespace plimsoll::models
