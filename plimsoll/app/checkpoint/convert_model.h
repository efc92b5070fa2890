// `plimsoll convert` as a function: a model as a Hugging Face directory in another dtype.
#pragma once

#include <filesystem>

#include "plimsoll/models/load.h"

namespace plimsoll::app {

struct ConvertOptions {
  std::filesystem::path model;  // a Hugging Face directory, a training run that began with one, or a checkpoint
  std::filesystem::path out;    // is made
  models::WeightDtype dtype = models::WeightDtype::kAsStored;  // no codes
  models::Warn warn = {};
};

// Weights, codes as their values, config and the files of the tokenizer; a warning where there is no tokenizer.json. Throws UsageError, Error,
// Interrupted or io::Error; then there is no directory.
void convert_model(const ConvertOptions& options);

}  // namespace plimsoll::app
