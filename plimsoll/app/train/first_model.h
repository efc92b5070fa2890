// The beginning of a run, as its options say: the tokens of its text, and a model.
#pragma once

#include <filesystem>
#include <memory>

#include "plimsoll/app/train/train_options.h"
#include "plimsoll/io/tokens.h"
#include "plimsoll/models/decoder/config.h"
#include "plimsoll/models/language_model.h"

namespace plimsoll::app {

// The model of a Hugging Face directory, by its config.json.
models::DecoderConfig config_of_directory(const std::filesystem::path& directory);

// Tokens that the model sees at a time in training: --context, the preset's context, or 512 of a Hugging Face model that
// sees more.
int64_t training_context(const TrainOptions& options);

// The bytes of options.data, or the ids of the tokenizer in the Hugging Face directory that the options name.
std::unique_ptr<const io::Tokens> training_tokens(const TrainOptions& options);

// The model of options.source in FP32, or one with weights drawn from the seed: of options.config_of or of the preset.
std::shared_ptr<models::LanguageModel> first_model(const TrainOptions& options);

}  // namespace plimsoll::app
