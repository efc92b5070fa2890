#include "plimsoll/models/decoder/traits.h"

#include <array>
#include <stdexcept>
#include <vector>

#include "plimsoll/recipe/names.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::models {
namespace {

constexpr std::array<DecoderTraits, 7> kDecoderTraits = {{
    {.family = DecoderFamily::kLlama,
     .model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .attention_bias = "attention_bias",
     .mlp_bias = "mlp_bias",
     .usual_bos = 1,
     .usual_eos = 2},
    {.family = DecoderFamily::kMistral,
     .model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .usual_bos = 1,
     .usual_eos = 2,
     .windows = WindowRule::kAllLayers},
    {.family = DecoderFamily::kQwen2,
     .model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .qkv_bias = true,
     .windows = WindowRule::kSwitched},
    {.family = DecoderFamily::kQwen3,
     .model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .attention_bias = "attention_bias",
     .usual_head_dim = 128,
     .norms_heads = true,
     .windows = WindowRule::kSwitched},
    {.family = DecoderFamily::kGemma3Text,
     .model_type = "gemma3_text",
     .architecture = "Gemma3ForCausalLM",
     .activation = "hidden_activation",
     .attention_bias = "attention_bias",
     .usual_head_dim = 256,
     .usual_activation = "gelu_pytorch_tanh",
     .theta = 1e6,
     .ties_head = true,
     .usual_bos = 2,
     .usual_eos = 1,
     .usual_pad = 0,
     .zero_centered_norms = true,
     .norms_heads = true,
     .norms_branches = true,
     .scales_embedding = true,
     .rotary_by_reach = true,
     .scales_by_member = true,
     .windows = WindowRule::kSlidingPattern},
    {.family = DecoderFamily::kGpt2,
     .model_type = "gpt2",
     .architecture = "GPT2LMHeadModel",
     .dim = "n_embd",
     .layers = "n_layer",
     .heads = "n_head",
     .groups = nullptr,
     .head_dim = nullptr,
     .ffn_dim = "n_inner",
     .context = "n_positions",
     .epsilon = "layer_norm_epsilon",
     .activation = "activation_function",
     .embedding_dropout = "embd_pdrop",
     .attention_dropout = "attn_pdrop",
     .hidden_dropout = "resid_pdrop",
     .usual_epsilon = 1e-5,
     .usual_activation = "gelu_new",
     .usual_dropout = 0.1,
     .ties_head = true,
     .usual_bos = 50256,
     .usual_eos = 50256,
     .normalization = nn::Normalization::kLayerNorm,
     .gated = false,
     .qkv_bias = true,
     .output_bias = true,
     .all_mlp_bias = true,
     .learned_positions = true,
     .shrinks_what_writes_stream = true},
    {.family = DecoderFamily::kGptNeox,
     .model_type = "gpt_neox",
     .architecture = "GPTNeoXForCausalLM",
     .groups = nullptr,
     .head_dim = nullptr,
     .epsilon = "layer_norm_eps",
     .attention_bias = "attention_bias",
     .embedding_dropout = "hidden_dropout",
     .hidden_dropout = "hidden_dropout",
     .usual_epsilon = 1e-5,
     .usual_activation = "gelu",
     .rotated_share = 0.25,
     .usual_bos = 0,
     .usual_eos = 2,
     .normalization = nn::Normalization::kLayerNorm,
     .gated = false,
     .qkv_bias = true,
     .output_bias = true,
     .all_mlp_bias = true,
     .turns_share = true,
     .chooses_residual = true},
}};

}  // namespace

std::span<const DecoderTraits> decoder_traits() { return kDecoderTraits; }

const DecoderTraits& traits_of(DecoderFamily family) {
  for (const DecoderTraits& traits : kDecoderTraits) {
    if (traits.family == family) return traits;
  }
  runtime::unexpected("decoder: family", static_cast<int>(family));
}

const DecoderTraits& traits_of(std::string_view model_type) {
  std::vector<std::string_view> known;
  for (const DecoderTraits& traits : kDecoderTraits) {
    if (traits.model_type == model_type) return traits;
    known.emplace_back(traits.model_type);
  }
  throw std::invalid_argument(recipe::unknown_name("model_type", model_type, known));
}

}  // namespace plimsoll::models
