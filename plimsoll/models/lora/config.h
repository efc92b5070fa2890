// adapter_config.json, as PEFT writes it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "plimsoll/models/lora/lora.h"

namespace plimsoll::models {

struct AdapterConfig {
  LoraOptions options = {};
  std::string base_model = {};  // base_model_name_or_path
};

// Throws io::Error that opens with `name` and names the member that is of another type or not supported.
AdapterConfig read_adapter_config(const nlohmann::json& config, const std::string& name);

// transposes: the base stores [in, out], as GPT-2 does.
nlohmann::json adapter_config_json(const AdapterConfig& config, bool transposes = false);

}  // namespace plimsoll::models
