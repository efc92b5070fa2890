#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "plimsoll/models/decoder/config_json.h"
#include "plimsoll/models/decoder/config_names.h"
#include "plimsoll/models/decoder/traits.h"
#include "plimsoll/models/model_plan.h"

namespace plimsoll::models {
namespace {

using nlohmann::json;

std::string_view activation_name(const DecoderTraits& traits, kernels::Activation activation) {
  const auto is_it = [&](const auto& row) { return row.value.of(traits.gated) == activation; };
  for (const auto& row : kConfigActivations) {
    if (row.name == traits.usual_activation && is_it(row)) return row.name;
  }
  for (const auto& row : kConfigActivations) {
    if (is_it(row)) return row.name;
  }
  throw std::logic_error("decoder: expected an activation that config.json can name, got another");
}

json rotary_json(const nn::RotaryTableOptions& rotary) {
  json result = {{"rope_type", recipe::name_of(kRotaryScalings, rotary.scaling)}, {"rope_theta", rotary.theta}};
  if (rotary.scaling != nn::RotaryScaling::kNone) result["factor"] = rotary.factor;
  if (rotary.scaling == nn::RotaryScaling::kLlama3) {
    result["low_freq_factor"] = rotary.low_freq_factor;
    result["high_freq_factor"] = rotary.high_freq_factor;
    result["original_max_position_embeddings"] = rotary.original_max_position_embeddings;
  }
  return result;
}

void write_positions(const DecoderConfig& config, const DecoderTraits& traits, json& result) {
  if (traits.rotary_by_reach) {
    result["rope_parameters"] = {{"full_attention", rotary_json(config.rotary)},
                                 {"sliding_attention", rotary_json(config.sliding_rotary)}};
  } else if (!config.learned_positions) {
    result["rope_parameters"] = rotary_json(config.rotary);
  }
  if (traits.turns_share) result["rope_parameters"]["partial_rotary_factor"] = config.rotary.share;
}

void write_windows(const DecoderConfig& config, const DecoderTraits& traits, json& result) {
  if (traits.windows == WindowRule::kNone) return;
  result["sliding_window"] = config.window > 0 ? json(config.window) : json();
  if (traits.windows == WindowRule::kAllLayers) return;
  if (traits.windows == WindowRule::kSwitched) result["use_sliding_window"] = config.window > 0;
  result["layer_types"] = json::array();
  for (const Reach reach : config.reaches) result["layer_types"].push_back(recipe::name_of(kReaches, reach));
}

void write_token_ids(const DecoderConfig& config, json& result) {
  const auto id_or_null = [](const std::optional<int64_t>& id) { return id ? json(*id) : json(); };
  result["bos_token_id"] = id_or_null(config.bos_token_id);
  result["pad_token_id"] = id_or_null(config.pad_token_id);
  const std::vector<int64_t>& eos = config.eos_token_ids;
  result["eos_token_id"] = eos.empty() ? json() : eos.size() == 1 ? json(eos.front()) : json(eos);
}

}  // namespace

json decoder_config_json(const DecoderConfig& config) {
  const DecoderTraits& traits = traits_of(config.family);
  json result = {{"model_type", traits.model_type},
                 {"architectures", json::array({traits.architecture})},
                 {"vocab_size", config.vocabulary},
                 {traits.dim, config.dim},
                 {traits.layers, config.layers},
                 {traits.heads, config.heads},
                 {traits.ffn_dim, config.ffn_dim},
                 {traits.context, config.context},
                 {traits.epsilon, config.norm_epsilon},
                 {traits.activation, activation_name(traits, config.activation)},
                 {"initializer_range", config.initializer_range},
                 {"tie_word_embeddings", config.ties_head}};
  const auto write = [&](const char* member, const auto& value) {
    if (member != nullptr) result[member] = value;
  };
  write(traits.groups, config.groups);
  write(traits.head_dim, config.head_dim);
  write(traits.attention_bias, config.qkv_bias);
  write(traits.mlp_bias, config.mlp_bias);
  write(traits.embedding_dropout, config.embedding_dropout);
  write(traits.attention_dropout, config.attention_dropout);
  write(traits.hidden_dropout, config.hidden_dropout);
  if (traits.chooses_residual) result["use_parallel_residual"] = config.parallel_residual;
  if (traits.scales_by_member) {
    result["query_pre_attn_scalar"] = std::llround(1 / (config.attention_scale * config.attention_scale));
  } else if (config.attention_scale == 1) {
    result["scale_attn_weights"] = false;
  }
  write_positions(config, traits, result);
  write_windows(config, traits, result);
  write_token_ids(config, result);
  if (!config.high_precision.empty()) result[kPlanMember] = {{kHighPrecisionMember, config.high_precision}};
  return result;
}

std::string config_dtype_name(at::ScalarType dtype) { return std::string(recipe::name_of(kConfigDtypes, dtype)); }

}  // namespace plimsoll::models
