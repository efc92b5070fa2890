// One pre-norm transformer block. Children: self_attention, inter_attention (decoder), layernorm_mlp.
#pragma once

#include <string>

#include "plimsoll/nn/forward_hooks.h"
#include "plimsoll/nn/layer_norm_mlp.h"
#include "plimsoll/nn/multihead_attention.h"

namespace plimsoll::nn {

enum class LayerType : uint8_t {
  kEncoder,
  kDecoder,  // with cross-attention to encoder_output
};

struct TransformerLayerOptions {
  int64_t kv_channels = 0;     // of one head; 0: hidden_size / heads
  int64_t num_gqa_groups = 0;  // 0: as many as heads
  double layernorm_epsilon = 1e-5;
  double hidden_dropout = 0.1;
  double attention_dropout = 0.1;
  AttentionMask self_attn_mask_type = AttentionMask::kCausal;
  AttentionMask enc_dec_attn_mask_type = AttentionMask::kNone;
  Normalization normalization = Normalization::kLayerNorm;
  bool zero_centered_gamma = false;
  std::string activation = "gelu";
  std::vector<double> activation_params = {};
  LayerType layer_type = LayerType::kEncoder;
  bool fuse_qkv_params = false;
  bool qkv_weight_interleaved = true;
  bool bias = true;
  Layout attn_input_format = Layout::kSbhd;
};

// Arguments of a layer beside the hidden states. Masks as in DotProductAttention.
struct TransformerLayerInput {
  at::Tensor attention_mask = {};
  at::Tensor encoder_output = {};
  at::Tensor enc_dec_attn_mask = {};
  std::optional<bool> is_first_microbatch = std::nullopt;
  KeyValueCache* cache = nullptr;
};

// Hidden states whose last addition is left to the norm that reads them: hidden + residual.
struct ResidualStream {
  at::Tensor hidden = {};
  at::Tensor residual = {};  // undefined: hidden alone

  at::Tensor value() const { return residual.defined() ? hidden + residual : hidden; }
};

class TransformerLayerImpl : public torch::nn::Cloneable<TransformerLayerImpl>, public BlockSwitches {
 public:
  TransformerLayerImpl(int64_t hidden_size, int64_t ffn_hidden_size, int64_t num_attention_heads,
                       TransformerLayerOptions options = {});
  void reset() override;

  // hidden [seq, batch, hidden_size] (kBshd: [batch, seq, hidden_size]) -> the same shape, in the scope's
  // high-precision dtype.
  at::Tensor forward(const at::Tensor& hidden, const TransformerLayerInput& input = {});
  // The same for a chain of layers, without a pass over memory for each addition.
  ResidualStream advance(ResidualStream stream, const TransformerLayerInput& input = {});

  int64_t hidden_size, ffn_hidden_size, num_attention_heads;
  TransformerLayerOptions options;
  MultiheadAttention self_attention{nullptr}, inter_attention{nullptr};
  LayerNormMlp layernorm_mlp{nullptr};

 private:
  ResidualStream run(ResidualStream stream, const TransformerLayerInput& input);
  ResidualStream run_checkpointed(const ResidualStream& stream, const TransformerLayerInput& input);
  ResidualStream attend(MultiheadAttention& attention, const ResidualStream& stream, MultiheadAttentionInput input);
};
TORCH_MODULE(TransformerLayer);

}  // namespace plimsoll::nn
