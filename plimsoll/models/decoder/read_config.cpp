#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "plimsoll/io/error.h"
#include "plimsoll/models/config_members.h"
#include "plimsoll/models/decoder/config_json.h"
#include "plimsoll/models/decoder/config_names.h"
#include "plimsoll/models/decoder/traits.h"
#include "plimsoll/models/model_plan.h"

namespace plimsoll::models {
namespace {

using nlohmann::json;

constexpr int64_t kUsualSlidingPattern = 6;  // Gemma 3: five layers with a window to one without

// The value of a name in a table; an io::Error that names the member and lists the table otherwise.
template <class Table>
auto named(const Table& table, const ConfigMembers& members, const std::string& member, const std::string& name) {
  try {
    return recipe::value_of(table, member, name);
  } catch (const std::invalid_argument& error) {
    io::fail("{}: {}", members.name(), error.what());
  }
}

class DecoderConfigReader {
 public:
  DecoderConfigReader(const json& config, const std::string& name, const DecoderTraits& traits)
      : members_(config, name), traits_(traits) {}

  DecoderConfig read() {
    refuse_what_is_not_computed();
    config_.family = traits_.family;
    read_sizes();
    read_layers();
    read_positions();
    read_reaches();
    read_dropouts();
    config_.initializer_range = members_.number("initializer_range", config_.initializer_range);
    return config_;
  }

 private:
  void refuse_what_is_not_computed() const {
    for (const char* member : {"final_logit_softcapping", "attn_logit_softcapping"}) {
      if (members_.has(member)) {
        io::fail("{}: {}: expected none, got {}", members_.name(), member, members_.at(member).dump());
      }
    }
    for (const char* member :
         {"use_bidirectional_attention", "scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
      if (members_.flag(member, false)) io::fail("{}: {}: expected false, got true", members_.name(), member);
    }
  }

  void read_sizes() {
    config_.vocabulary = members_.needed_integer("vocab_size");
    config_.dim = members_.needed_integer(traits_.dim);
    config_.layers = members_.needed_integer(traits_.layers);
    config_.heads = members_.needed_integer(traits_.heads);
    config_.groups = traits_.groups == nullptr ? config_.heads : members_.integer(traits_.groups, config_.heads);
    config_.context = members_.needed_integer(traits_.context);
    const bool divides = config_.heads > 0 && config_.dim % config_.heads == 0;
    const int64_t divided = divides ? config_.dim / config_.heads : 0;
    const int64_t usual = traits_.usual_head_dim != 0 ? traits_.usual_head_dim : divided;
    config_.head_dim = traits_.head_dim == nullptr ? divided : members_.integer(traits_.head_dim, usual);
    // Four times dim where it may be absent, as GPT-2's.
    config_.ffn_dim =
        traits_.gated ? members_.needed_integer(traits_.ffn_dim) : members_.integer(traits_.ffn_dim, 4 * config_.dim);
  }

  void read_layers() {
    config_.normalization = traits_.normalization;
    config_.norm_epsilon = members_.number(traits_.epsilon, traits_.usual_epsilon);
    config_.zero_centered_norms = traits_.zero_centered_norms;
    config_.norms_heads = traits_.norms_heads;
    config_.norms_branches = traits_.norms_branches;
    const auto bias = [&](const char* member, bool otherwise) {
      return member == nullptr ? otherwise : members_.flag(member, otherwise);
    };
    config_.qkv_bias = bias(traits_.attention_bias, traits_.qkv_bias);
    config_.output_bias = bias(traits_.attention_bias, traits_.output_bias);
    config_.mlp_bias = bias(traits_.mlp_bias, traits_.all_mlp_bias);
    config_.activation = read_activation();
    config_.parallel_residual = traits_.chooses_residual && members_.flag("use_parallel_residual", true);
    config_.scales_embedding = traits_.scales_embedding;
    config_.ties_head = members_.flag("tie_word_embeddings", traits_.ties_head);
    if (traits_.scales_by_member) {
      const int64_t scalar = members_.integer("query_pre_attn_scalar", kUsualQueryScalar);
      if (scalar < 1) io::fail("{}: query_pre_attn_scalar: expected >= 1, got {}", members_.name(), scalar);
      config_.attention_scale = 1 / std::sqrt(static_cast<double>(scalar));
    }
    if (!members_.flag("scale_attn_weights", true)) config_.attention_scale = 1;
  }

  kernels::Activation read_activation() const {
    const std::string name = members_.text(traits_.activation, traits_.usual_activation);
    const auto activation = named(kConfigActivations, members_, traits_.activation, name).of(traits_.gated);
    if (!activation)
      io::fail("{}: {}: expected one with a gated form, got '{}'", members_.name(), traits_.activation, name);
    return *activation;
  }

  // A member that is an object, or an empty object.
  json object(const char* member) const {
    if (!members_.has(member)) return json::object();
    if (!members_.at(member).is_object()) {
      io::fail("{}: {}: expected an object, got {}", members_.name(), member, members_.at(member).dump());
    }
    return members_.at(member);
  }

  void read_positions() {
    config_.learned_positions = traits_.learned_positions;
    if (config_.learned_positions) return;
    json parameters = object("rope_parameters");
    const json scaling = object("rope_scaling");  // before transformers 5
    const char* source = scaling.empty() ? "rope_parameters" : "rope_scaling";
    const char* theta_member = traits_.turns_share ? "rotary_emb_base" : "rope_theta";
    const double theta = members_.number(theta_member, traits_.theta);
    if (!traits_.rotary_by_reach) {
      if (!scaling.empty()) parameters = scaling;
      config_.rotary = config_.sliding_rotary = rotary(parameters, theta, source);
    } else {
      json full = entry(parameters, "full_attention");
      full.update(scaling);
      config_.rotary = rotary(full, theta, source);
      config_.sliding_rotary =
          rotary(entry(parameters, "sliding_attention"), members_.number("rope_local_base_freq", traits_.sliding_theta),
                 "rope_parameters");
    }
    config_.rotary.share = config_.sliding_rotary.share = rotated_share(parameters);
  }

  json entry(const json& parameters, const char* type) const {
    if (parameters.contains("rope_type")) {
      io::fail("{}: rope_parameters: expected an entry for each type of layer, got one for all", members_.name());
    }
    const auto found = parameters.find(type);
    if (found == parameters.end() || found->is_null()) return json::object();
    if (!found->is_object()) {
      io::fail("{}: rope_parameters: {}: expected an object, got {}", members_.name(), type, found->dump());
    }
    return *found;
  }

  // source: the member that the parameters stand in.
  nn::RotaryTableOptions rotary(const json& parameters, double theta, const std::string& source) const {
    const ConfigMembers members(parameters, members_.name() + ": " + source);
    nn::RotaryTableOptions rotary{.theta = members.number("rope_theta", theta)};
    rotary.scaling =
        named(kRotaryScalings, members, "rope_type", members.text("rope_type", members.text("type", "default")));
    if (rotary.scaling == nn::RotaryScaling::kNone) return rotary;
    rotary.factor = members.needed_number("factor");
    if (rotary.scaling == nn::RotaryScaling::kLinear) return rotary;
    rotary.low_freq_factor = members.needed_number("low_freq_factor");
    rotary.high_freq_factor = members.needed_number("high_freq_factor");
    const int64_t usual = members_.integer("original_max_position_embeddings", config_.context);
    rotary.original_max_position_embeddings = members.integer("original_max_position_embeddings", usual);
    return rotary;
  }

  double rotated_share(const json& parameters) const {
    const ConfigMembers members(parameters, members_.name() + ": rope_parameters");
    const char* member = "partial_rotary_factor";
    const double outer = members_.number(traits_.turns_share ? "rotary_pct" : member, traits_.rotated_share);
    const double share = members.number(member, outer);
    if (!traits_.turns_share && share != 1) {
      io::fail("{}: {}: expected 1 for {}, got {}", members_.name(), member, traits_.model_type, share);
    }
    return share;
  }

  void read_reaches() {
    const int64_t layers = std::clamp<int64_t>(config_.layers, 0, kMostLayers);
    config_.reaches.assign(static_cast<size_t>(layers), Reach::kFull);
    config_.window = members_.contains("sliding_window") ? members_.integer("sliding_window", 0) : traits_.usual_window;
    switch (traits_.windows) {
      case WindowRule::kNone:
        config_.window = 0;
        break;
      case WindowRule::kAllLayers:
        slide_if([&](int64_t) { return config_.window > 0; });
        break;
      case WindowRule::kSwitched: {
        const bool slides = members_.flag("use_sliding_window", false) && config_.window > 0;
        if (!slides) config_.window = 0;
        const int64_t first = members_.integer("max_window_layers", kUsualMaxWindowLayers);
        slide_if([&](int64_t layer) { return slides && layer >= first; });
        break;
      }
      case WindowRule::kSlidingPattern: {
        const int64_t pattern = members_.integer("sliding_window_pattern", kUsualSlidingPattern);
        if (pattern < 1) io::fail("{}: sliding_window_pattern: expected >= 1, got {}", members_.name(), pattern);
        slide_if([&](int64_t layer) { return (layer + 1) % pattern != 0; });
        break;
      }
    }
    if (members_.has("layer_types")) read_layer_types();
  }

  template <class Predicate>
  void slide_if(const Predicate& slides) {
    for (size_t layer = 0; layer < config_.reaches.size(); ++layer) {
      if (slides(static_cast<int64_t>(layer))) config_.reaches[layer] = Reach::kSliding;
    }
  }

  void read_layer_types() {
    const json& types = members_.at("layer_types");
    if (!types.is_array()) io::fail("{}: layer_types: expected a list, got {}", members_.name(), types.type_name());
    std::vector<Reach> reaches;
    for (const json& type : types) {
      if (!type.is_string()) io::fail("{}: layer_types: expected names, got {}", members_.name(), type.dump());
      reaches.push_back(named(kReaches, members_, "layer_types", type.get<std::string>()));
    }
    const bool chooses = traits_.windows == WindowRule::kSwitched || traits_.windows == WindowRule::kSlidingPattern;
    if (!chooses && reaches != config_.reaches) {
      io::fail("{}: layer_types: expected none, or {} for each of {} layers of {}, got {}", members_.name(),
               recipe::name_of(kReaches, config_.window > 0 ? Reach::kSliding : Reach::kFull), config_.layers,
               traits_.model_type, types.dump());
    }
    config_.reaches = std::move(reaches);
  }

  void read_dropouts() {
    const auto dropout = [&](const char* member) {
      return member == nullptr ? 0 : members_.number(member, traits_.usual_dropout);
    };
    config_.embedding_dropout = dropout(traits_.embedding_dropout);
    config_.attention_dropout = dropout(traits_.attention_dropout);
    config_.hidden_dropout = dropout(traits_.hidden_dropout);
  }

  static constexpr int64_t kMostLayers = 1 << 24;       // of a file that is not believed yet
  static constexpr int64_t kUsualMaxWindowLayers = 28;  // Qwen 2 and 3
  static constexpr int64_t kUsualQueryScalar = 256;     // Gemma 3

  ConfigMembers members_;
  const DecoderTraits& traits_;
  DecoderConfig config_;
};

// Ids outside of the vocabulary stand for none: -1 in older files, GPT-2's 50256 beside a vocabulary of one's own.
void read_token_ids(const ConfigMembers& members, DecoderConfig& config) {
  const auto is_token = [&](int64_t id) { return id >= 0 && id < config.vocabulary; };
  const auto read = [&](const char* member, std::optional<int64_t>& id) {
    if (!members.has(member)) return;
    id = members.integer(member, 0);
    if (!is_token(*id)) id.reset();
  };
  read("bos_token_id", config.bos_token_id);
  read("pad_token_id", config.pad_token_id);
  if (!members.has("eos_token_id")) return;
  const json& eos = members.at("eos_token_id");
  const json list = eos.is_array() ? eos : json::array({eos});
  config.eos_token_ids.clear();
  for (const json& id : list) {
    if (!id.is_number_integer()) {
      io::fail("{}: eos_token_id: expected an integer or a list of them, got {}", members.name(), eos.dump());
    }
    if (is_token(id.get<int64_t>())) config.eos_token_ids.push_back(id.get<int64_t>());
  }
}

// config.json with transformers' ids where it has none.
json with_usual_ids(json config, const DecoderTraits& traits) {
  const auto add = [&](const char* member, const std::optional<int64_t>& id) {
    if (id && !config.contains(member)) config[member] = *id;
  };
  add("bos_token_id", traits.usual_bos);
  add("eos_token_id", traits.usual_eos);
  add("pad_token_id", traits.usual_pad);
  return config;
}

std::string model_type_of(const json& config) {
  const auto type = config.is_object() ? config.find("model_type") : config.end();
  return config.is_object() && type != config.end() && type->is_string() ? type->get<std::string>() : "";
}

}  // namespace

bool is_decoder(const json& config) {
  const auto traits = decoder_traits();
  return std::any_of(traits.begin(), traits.end(),
                     [type = model_type_of(config)](const DecoderTraits& row) { return row.model_type == type; });
}

DecoderConfig read_decoder_config(const json& config, const std::string& name) {
  if (!config.is_object()) io::fail("{}: expected a JSON object, got {}", name, config.type_name());
  const DecoderTraits* traits = nullptr;
  try {
    traits = &traits_of(model_type_of(config));
  } catch (const std::invalid_argument& error) {
    io::fail("{}: {}", name, error.what());
  }
  DecoderConfig result = DecoderConfigReader(config, name, *traits).read();
  result.high_precision = read_plan(config, name);
  check(result);
  const json with_ids = with_usual_ids(config, *traits);
  read_token_ids(ConfigMembers(with_ids, name), result);
  return result;
}

void read_generation_config(const json& generation, const std::string& name, DecoderConfig& config) {
  if (!generation.is_object()) io::fail("{}: expected a JSON object, got {}", name, generation.type_name());
  read_token_ids(ConfigMembers(generation, name), config);
}

std::optional<at::ScalarType> read_config_dtype(const json& config, const std::string& name) {
  const ConfigMembers members(config, name);
  const char* member = members.has("dtype") ? "dtype" : "torch_dtype";
  if (!members.has(member)) return std::nullopt;
  return named(kConfigDtypes, members, member, members.text(member, ""));
}

}  // namespace plimsoll::models
