#include "plimsoll/models/t5/read_config.h"

#include <algorithm>
#include <array>

#include "plimsoll/io/error.h"
#include "plimsoll/models/config_members.h"
#include "plimsoll/models/model_plan.h"
#include "plimsoll/models/stored_weight.h"

namespace plimsoll::models {
namespace {

using kernels::Activation;
using nlohmann::json;

Activation feed_forward(const ConfigMembers& members, bool gated_by_default) {
  struct Named {
    std::string_view name;
    Activation activation;
  };
  constexpr std::array<Named, 7> kNames = {{{"relu", Activation::kRelu},
                                            {"gelu_new", Activation::kGelu},
                                            {"silu", Activation::kSilu},
                                            {"gated-gelu", Activation::kGeglu},
                                            {"gated-gelu_new", Activation::kGeglu},
                                            {"gated-relu", Activation::kReglu},
                                            {"gated-silu", Activation::kSwiglu}}};
  const std::string name = members.text("feed_forward_proj", gated_by_default ? "gated-gelu" : "relu");
  const auto found = std::find_if(kNames.begin(), kNames.end(), [&](const Named& named) { return named.name == name; });
  if (found == kNames.end()) {
    io::fail("{}: feed_forward_proj: expected relu, gelu_new, silu, gated-gelu, gated-relu or gated-silu, got '{}'",
             members.name(), name);
  }
  return found->activation;
}

bool names_an_encoder(const json& config) {
  const auto architectures = config.find("architectures");
  return architectures != config.end() && architectures->is_array() &&
         std::any_of(architectures->begin(), architectures->end(), [](const json& name) {
           return name.is_string() && name.get<std::string>().ends_with("EncoderModel");
         });
}

// Whether logits are those of hidden states times d_model^-0.5, as transformers 5 has it: T5 by scale_decoder_outputs,
// which is the tie flag of configs older than it; MT5 never; UMT5 by the tie flag, which is set in every config that is
// saved by version 5, whether the head is tied or not.
bool scales_decoder_outputs(const ConfigMembers& members, std::string_view type) {
  if (type == "mt5") return false;
  const bool tie_flag = members.flag("tie_word_embeddings", true);
  return type == "umt5" ? tie_flag : members.flag("scale_decoder_outputs", tie_flag);
}

}  // namespace

bool is_t5_type(std::string_view model_type) {
  return model_type == "t5" || model_type == "mt5" || model_type == "umt5";
}

T5Config t5_config(const io::HuggingFaceDirectory& directory) {
  const ConfigMembers members(directory.config(), (directory.path() / "config.json").native());
  const std::string type = members.text("model_type", "t5");
  if (!is_t5_type(type)) {
    io::fail("{}: model_type: expected t5, mt5 or umt5, got '{}'", members.name(), type);
  }
  const bool multilingual = type != "t5";
  T5Config config;
  config.vocab_size = members.integer("vocab_size", multilingual ? 250112 : 32128);
  config.d_model = members.integer("d_model", 512);
  config.d_kv = members.integer("d_kv", 64);
  config.d_ff = members.integer("d_ff", multilingual ? 1024 : 2048);
  config.num_layers = members.integer("num_layers", multilingual ? 8 : 6);
  config.num_decoder_layers = members.integer("num_decoder_layers", config.num_layers);
  config.num_heads = members.integer("num_heads", multilingual ? 6 : 8);
  config.relative_attention_num_buckets = members.integer("relative_attention_num_buckets", 32);
  config.relative_attention_max_distance = members.integer("relative_attention_max_distance", 128);
  config.relative_bias_in_each_layer = type == "umt5";
  config.feed_forward = feed_forward(members, multilingual);
  config.layer_norm_epsilon = members.number("layer_norm_epsilon", config.layer_norm_epsilon);
  config.dropout_rate = members.number("dropout_rate", config.dropout_rate);
  config.initializer_factor = members.number("initializer_factor", config.initializer_factor);
  config.encoder_only = names_an_encoder(directory.config()) || !directory.contains("decoder.final_layer_norm.weight");
  config.tie_word_embeddings = !has_own_head(directory, "lm_head.weight", "shared.weight");
  config.scale_decoder_outputs = scales_decoder_outputs(members, type);
  config.pad_token_id = members.integer("pad_token_id", 0);
  config.eos_token_id = members.integer("eos_token_id", 1);
  config.decoder_start_token_id = members.integer("decoder_start_token_id", config.pad_token_id);
  config.high_precision = read_plan(directory.config(), members.name());
  return config;
}

}  // namespace plimsoll::models
