// One block of a decoder-only model: norm, attention, norm, feed-forward network, each added to the residual stream.
// Children: self_attention {layernorm_qkv, query_norm, key_norm, core_attention, proj}, layernorm_mlp, and with
// DecoderConfig::norms_branches attention_norm and mlp_norm.
#pragma once

#include <torch/nn/cloneable.h>

#include <optional>
#include <string_view>
#include <vector>

#include "plimsoll/models/decoder/config.h"
#include "plimsoll/nn/attention.h"
#include "plimsoll/nn/layer_norm.h"
#include "plimsoll/nn/layer_norm_linear.h"
#include "plimsoll/nn/layer_norm_mlp.h"
#include "plimsoll/nn/linear.h"
#include "plimsoll/nn/transformer_layer.h"
#include "plimsoll/ops/rotary/rotary.h"

namespace plimsoll::models {

struct DecoderBlockInput {
  ops::RotaryTurns turns = {};  // of the tokens' positions; undefined: nothing turns
  std::optional<bool> is_first_microbatch = std::nullopt;
  nn::KeyValueCache* cache = nullptr;  // keys and values go there and are read from there
  std::vector<int64_t> segments = {};  // ops::AttentionOptions; none with a cache
};

class DecoderAttentionImpl : public torch::nn::Cloneable<DecoderAttentionImpl> {
 public:
  DecoderAttentionImpl(const DecoderConfig& config, Reach reach);
  void reset() override;

  // The branch [batch, seq, dim] of the stream; sum as in ops::NormOutput.
  ops::NormOutput forward(const nn::ResidualStream& stream, const DecoderBlockInput& input);

  DecoderConfig config;
  Reach reach;
  nn::LayerNormLinear layernorm_qkv{nullptr};       // rows: the heads of queries, of keys, of values
  nn::Norm query_norm{nullptr}, key_norm{nullptr};  // none unless norms_heads
  nn::DotProductAttention core_attention{nullptr};
  nn::Linear proj{nullptr};

 private:
  void report_normed(std::string_view place, const at::Tensor& values) const;
  at::Tensor attend(const at::Tensor& projected, const DecoderBlockInput& input);
};
TORCH_MODULE(DecoderAttention);

class DecoderBlockImpl : public torch::nn::Cloneable<DecoderBlockImpl>, public nn::BlockSwitches {
 public:
  DecoderBlockImpl(const DecoderConfig& config, Reach reach);
  void reset() override;

  nn::ResidualStream advance(nn::ResidualStream stream, const DecoderBlockInput& input);

  DecoderConfig config;
  Reach reach;
  DecoderAttention self_attention{nullptr};
  nn::LayerNormMlp layernorm_mlp{nullptr};
  nn::Norm attention_norm{nullptr}, mlp_norm{nullptr};  // none unless norms_branches

 private:
  nn::ResidualStream run(nn::ResidualStream stream, const DecoderBlockInput& input);
  nn::ResidualStream run_checkpointed(const nn::ResidualStream& stream, const DecoderBlockInput& input);
  at::Tensor branch(const at::Tensor& output, nn::Norm& norm) const;
};
TORCH_MODULE(DecoderBlock);

}  // namespace plimsoll::models
