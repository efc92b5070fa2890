#include "plimsoll/models/lora/config.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "plimsoll/io/error.h"
#include "plimsoll/models/config_members.h"

namespace plimsoll::models {
namespace {

using nlohmann::json;

// Members that change nothing about an adapter that is trained: where it stands is said by its tensors, and the rest is
// how it began and what wrote it.
constexpr std::array<std::string_view, 20> kOfNoEffect = {"auto_mapping",
                                                          "base_model_name_or_path",
                                                          "bias",
                                                          "ensure_weight_tying",
                                                          "exclude_modules",
                                                          "fan_in_fan_out",
                                                          "inference_mode",
                                                          "init_lora_weights",
                                                          "layers_pattern",
                                                          "layers_to_transform",
                                                          "lora_alpha",
                                                          "lora_dropout",
                                                          "megatron_core",
                                                          "peft_type",
                                                          "peft_version",
                                                          "qalora_group_size",
                                                          "r",
                                                          "revision",
                                                          "target_modules",
                                                          "use_rslora"};

bool says_nothing(const json& value) {
  return value.is_null() || value == false || ((value.is_object() || value.is_array()) && value.empty());
}

// Initialisations that leave the base as it is.
bool is_plain_start(const json& value) {
  return !value.is_string() || value == "gaussian" || value == "eva" || value == "orthogonal";
}

void check_supported(const json& config, const ConfigMembers& members) {
  const auto refuse = [&](const std::string& member, const std::string& expected) {
    io::fail("{}: {}: expected {}, got {}", members.name(), member, expected, config.at(member).dump());
  };
  if (members.text("peft_type", "") != "LORA") {
    io::fail("{}: peft_type: expected \"LORA\", got {}", members.name(), config.value("peft_type", json()).dump());
  }
  if (members.text("bias", "none") != "none") refuse("bias", "\"none\"");
  if (members.has("init_lora_weights") && !is_plain_start(members.at("init_lora_weights"))) {
    refuse("init_lora_weights", "an initialisation that leaves the base as it is");
  }
  if (const std::string task = members.text("task_type", "CAUSAL_LM"); task != "CAUSAL_LM") {
    refuse("task_type", "\"CAUSAL_LM\"");
  }
  for (const auto& [member, value] : config.items()) {
    const bool known =
        member == "task_type" || std::find(kOfNoEffect.begin(), kOfNoEffect.end(), member) != kOfNoEffect.end();
    if (!known && !says_nothing(value)) refuse(member, "none: it is not supported");
  }
}

std::vector<std::string> read_targets(const json& config, const ConfigMembers& members) {
  if (!members.has("target_modules")) return {kAllLinear};
  const json& value = config.at("target_modules");
  if (value.is_string()) return {value.get<std::string>()};
  const bool is_list =
      value.is_array() && std::all_of(value.begin(), value.end(), [](const json& each) { return each.is_string(); });
  if (!is_list) io::fail("{}: target_modules: expected names, got {}", members.name(), value.dump());
  return value.get<std::vector<std::string>>();
}

}  // namespace

AdapterConfig read_adapter_config(const json& config, const std::string& name) {
  if (!config.is_object()) io::fail("{}: expected an object, got {}", name, config.type_name());
  const ConfigMembers members(config, name);
  check_supported(config, members);
  const nn::LoraOptions adapters{.rank = members.needed_integer("r"),
                                 .alpha = members.number("lora_alpha", 8),
                                 .rank_stabilized = members.flag("use_rslora", false),
                                 .dropout = members.number("lora_dropout", 0)};
  if (adapters.rank < 1) io::fail("{}: r: expected 1 or more, got {}", name, adapters.rank);
  if (!(adapters.dropout >= 0 && adapters.dropout < 1)) {
    io::fail("{}: lora_dropout: expected one in [0, 1), got {}", name, adapters.dropout);
  }
  return {.options = {.adapters = adapters, .targets = read_targets(config, members)},
          .base_model = members.text("base_model_name_or_path", "")};
}

json adapter_config_json(const AdapterConfig& config, bool transposes) {
  const nn::LoraOptions& adapters = config.options.adapters;
  const json base = config.base_model.empty() ? json() : json(config.base_model);
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", base},
          {"r", adapters.rank},
          {"lora_alpha", adapters.alpha},
          {"lora_dropout", adapters.dropout},
          {"use_rslora", adapters.rank_stabilized},
          {"target_modules", config.options.targets},
          {"bias", "none"},
          {"fan_in_fan_out", transposes},
          {"init_lora_weights", true},
          {"inference_mode", true}};
}

}  // namespace plimsoll::models
