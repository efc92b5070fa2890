// config.json of a decoder-only model, as transformers 5 writes it; members of older versions are read, too.
#pragma once

#include <ATen/core/TensorBody.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "plimsoll/models/decoder/config.h"

namespace plimsoll::models {

// Whether `config` is of a family that a decoder is made for.
bool is_decoder(const nlohmann::json& config);

// name: of the file, opens errors. Throws io::Error that names the member at fault, and what is supported of a
// model_type, a rope_type, a layer type or an activation; c10::ValueError for sizes that no model has.
DecoderConfig read_decoder_config(const nlohmann::json& config, const std::string& name);

// eos_token_id, bos_token_id and pad_token_id of a generation_config.json, where they are there.
void read_generation_config(const nlohmann::json& generation, const std::string& name, DecoderConfig& config);

// Member dtype (torch_dtype), where it is there.
std::optional<at::ScalarType> read_config_dtype(const nlohmann::json& config, const std::string& name);

// A config.json that read_decoder_config reads back as the same config.
nlohmann::json decoder_config_json(const DecoderConfig& config);
// The name of a dtype there: "float32", "bfloat16", "float16".
std::string config_dtype_name(at::ScalarType dtype);

}  // namespace plimsoll::models
