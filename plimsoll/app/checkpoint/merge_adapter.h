// `plimsoll merge` as a function: a model with an adapter in its weights.
#pragma once

#include <filesystem>

#include "plimsoll/models/load.h"

namespace plimsoll::app {

struct MergeOptions {
  std::filesystem::path model;    // a Hugging Face directory, a training run that began with one, or a checkpoint
  std::filesystem::path adapter;  // adapter_config.json and adapter_model.safetensors
  std::filesystem::path out;      // is made
  models::Warn warn = {};
};

// Weights in the dtype that they have, config and the files of the tokenizer. Throws UsageError, Error or io::Error; then
// there is no directory.
void merge_adapter(const MergeOptions& options);

}  // namespace plimsoll::app
