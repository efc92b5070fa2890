#include "plimsoll/nn/transformer_layer.h"

#include <ATen/ops/dropout.h>

#include "plimsoll/nn/checkpoint.h"
#include "plimsoll/nn/checks.h"
#include "plimsoll/nn/precision.h"

namespace plimsoll::nn {

TransformerLayerImpl::TransformerLayerImpl(int64_t hidden, int64_t ffn_hidden, int64_t heads,
                                           TransformerLayerOptions settings)
    : hidden_size(hidden), ffn_hidden_size(ffn_hidden), num_attention_heads(heads), options(std::move(settings)) {
  check_dropout("TransformerLayer", "hidden_dropout", options.hidden_dropout);
  TransformerLayerImpl::reset();
}

void TransformerLayerImpl::reset() {
  MultiheadAttentionOptions attention{.kv_channels = options.kv_channels,
                                      .num_gqa_groups = options.num_gqa_groups,
                                      .attention_dropout = options.attention_dropout,
                                      .layernorm_epsilon = options.layernorm_epsilon,
                                      .attn_mask_type = options.self_attn_mask_type,
                                      .input_layernorm = true,
                                      .normalization = options.normalization,
                                      .zero_centered_gamma = options.zero_centered_gamma,
                                      .fuse_qkv_params = options.fuse_qkv_params,
                                      .qkv_weight_interleaved = options.qkv_weight_interleaved,
                                      .bias = options.bias,
                                      .qkv_format = options.attn_input_format};
  self_attention = register_module("self_attention", MultiheadAttention(hidden_size, num_attention_heads, attention));
  if (options.layer_type == LayerType::kDecoder) {
    attention.attention_type = AttentionType::kCross;
    attention.attn_mask_type = options.enc_dec_attn_mask_type;
    inter_attention =
        register_module("inter_attention", MultiheadAttention(hidden_size, num_attention_heads, attention));
  }
  layernorm_mlp = register_module(
      "layernorm_mlp", LayerNormMlp(hidden_size, ffn_hidden_size,
                                    LayerNormMlpOptions{.eps = options.layernorm_epsilon,
                                                        .bias = options.bias,
                                                        .normalization = options.normalization,
                                                        .activation = options.activation,
                                                        .activation_params = options.activation_params,
                                                        .zero_centered_gamma = options.zero_centered_gamma}));
}

ResidualStream TransformerLayerImpl::attend(MultiheadAttention& attention, const ResidualStream& stream,
                                            MultiheadAttentionInput input) {
  input.hidden = stream.hidden;
  input.residual = stream.residual;
  const ops::NormOutput attended = attention->forward(input);
  return {.hidden = at::dropout(attended.output, options.hidden_dropout, is_training()),
          .residual = stream.residual.defined() ? attended.sum : stream.hidden};
}

ResidualStream TransformerLayerImpl::advance(ResidualStream stream, const TransformerLayerInput& input) {
  if (hooks.before) hooks.before();
  stream = checkpoint_activations ? run_checkpointed(stream, input) : run(std::move(stream), input);
  if (hooks.after) hooks.after({stream.hidden, stream.residual});
  return stream;
}

ResidualStream TransformerLayerImpl::run(ResidualStream stream, const TransformerLayerInput& input) {
  const auto dtype = scope_dtype(stream.hidden.device().type());
  if (dtype) stream.hidden = stream.hidden.to(*dtype);
  stream = attend(
      self_attention, stream,
      {.attention_mask = input.attention_mask, .is_first_microbatch = input.is_first_microbatch, .cache = input.cache});
  if (options.layer_type == LayerType::kDecoder) {
    stream = attend(inter_attention, stream,
                    {.encoder_output = input.encoder_output,
                     .attention_mask = input.enc_dec_attn_mask,
                     .is_first_microbatch = input.is_first_microbatch});
  }
  const ops::NormOutput output = layernorm_mlp->forward(stream.hidden, stream.residual, input.is_first_microbatch);
  return {.hidden = at::dropout(output.output, options.hidden_dropout, is_training()), .residual = output.sum};
}

ResidualStream TransformerLayerImpl::run_checkpointed(const ResidualStream& stream,
                                                      const TransformerLayerInput& input) {
  const auto segment = [this, input](const std::vector<at::Tensor>& differentiable) {
    TransformerLayerInput again = input;
    again.encoder_output = differentiable[2];
    const ResidualStream output = run({.hidden = differentiable[0], .residual = differentiable[1]}, again);
    return std::vector{output.hidden, output.residual};
  };
  const std::vector<at::Tensor> outputs =
      checkpoint(segment, {stream.hidden, stream.residual, input.encoder_output}, parameters());
  return {.hidden = outputs[0], .residual = outputs[1]};
}

at::Tensor TransformerLayerImpl::forward(const at::Tensor& hidden, const TransformerLayerInput& input) {
  return advance({.hidden = hidden}, input).value();
}

}  // namespace plimsoll::nn
