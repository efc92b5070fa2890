// LoRA of a decoder-only model: the base is frozen, and low-rank adapters of its linear layers train. Files are PEFT's.
//
//   models::LoadedModel loaded = models::load("SmolLM2-135M-Instruct");
//   models::add_lora(*loaded.model, {.adapters = {.rank = 16, .alpha = 32}, .targets = {"q_proj", "v_proj"}});
//   // ... train: the adapters alone require gradients
//   models::save_adapter(*loaded.model, "adapter", {.base_model = "SmolLM2-135M-Instruct"});
//   models::merge_lora(*loaded.model);
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "plimsoll/models/decoder/config.h"
#include "plimsoll/models/language_model.h"
#include "plimsoll/models/overflowed_weights.h"
#include "plimsoll/nn/lora_scope.h"

namespace plimsoll::models {

inline constexpr const char* kAllLinear = "all-linear";  // every linear layer of the blocks, not the head

struct LoraOptions {
  nn::LoraOptions adapters = {};
  // Modules by the last part of the name that Hugging Face's files have for them ("q_proj", "mlp.c_proj"), or the whole
  // of it; or kAllLinear alone.
  std::vector<std::string> targets = {kAllLinear};
};

// Parameters that add_lora() would add to a model of this config. Throws c10::ValueError as it does.
int64_t lora_parameters(const DecoderConfig& config, const LoraOptions& options);

// No parameter of the model requires a gradient after it but those of the adapters: A drawn from torch's generator, B
// zeros. Throws c10::ValueError for a target that the model lacks, which lists those that it has, for a model of another
// kind than load() gives, and for one that has adapters.
void add_lora(LanguageModel& model, const LoraOptions& options = {});

// Adds what the weights lack of the adapted model, as an FP32 sum that is rounded once to their dtype, and removes the
// adapters. warn hears of weights that the dtype cannot hold. Throws c10::ValueError without adapters, io::Error where the
// weights are codes.
void merge_lora(LanguageModel& model, const Warn& warn = {});

// The directory has adapter_config.json and adapter_model.safetensors, as PEFT writes them. Adapters stand where the file
// has tensors. Freezes the base, as add_lora() does. Throws io::Error, one line, which names a member of the config that
// is not supported, and tensors that are missing, of another shape, or of no layer that takes adapters.
LoraOptions load_adapter(LanguageModel& model, const std::filesystem::path& directory);

// The same adapters outside the model, for texts that ask for them (TextTokens, nn::LoraScope): the model does not change,
// and each of several may be read. Errors as those of load_adapter(); a model that has adapters is one.
std::shared_ptr<const nn::LoraSet> read_adapter(const LanguageModel& model, const std::filesystem::path& directory);

struct SaveAdapterOptions {
  std::string base_model = {};  // base_model_name_or_path; empty: null
};

// Makes the directory. FP32. Throws c10::ValueError without adapters.
void save_adapter(const LanguageModel& model, const std::filesystem::path& directory,
                  const SaveAdapterOptions& options = {});

}  // namespace plimsoll::models
