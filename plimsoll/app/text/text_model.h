// A decoder-only model with the tokenizer of its texts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/models/generation_defaults.h"
#include "plimsoll/models/language_model.h"
#include "plimsoll/models/load.h"
#include "plimsoll/recipe/recipe.h"
#include "plimsoll/tokenize/tokenizer.h"

namespace plimsoll::app {

struct TextModel {
  std::filesystem::path directory;               // of the tokenizer and its chat template
  std::shared_ptr<models::LanguageModel> model;  // in eval()
  // In force while it computes; none: the products have the dtype of the weights.
  std::optional<recipe::Recipe> recipe;
  std::unique_ptr<tokenize::Tokenizer> tokenizer;
  std::vector<int64_t> ends;  // tokens that end a text
  models::GenerationDefaults generation = {};
  int64_t step = 0;                // of the run
  double high_precision_tail = 0;  // of the run
};

struct TextModelOptions {
  std::filesystem::path
      path;  // a Hugging Face directory, a run, of which the newest good checkpoint is taken, or a checkpoint
  models::WeightDtype dtype =
      models::WeightDtype::kAsStored;  // of a Hugging Face directory; a run computes by its recipe
  models::CodedWeights coded = models::CodedWeights::kRefused;
  std::filesystem::path adapter = {};  // a directory that models::load_adapter() takes; empty: none
  models::Warn warn = {};
};

// The directory of a run, which has the tokenizer, or of the run of a checkpoint of one step.
std::filesystem::path directory_of_run(const std::filesystem::path& path);

// Tokens that the model knows.
int64_t vocabulary_of(const models::LanguageModel& model);

// Bytes that a weight takes in memory, codes with their scales.
double bytes_per_weight(models::LanguageModel& model);

// The tokenizer of a model with that vocabulary. Special tokens beyond the vocabulary, as Gemma 3 has, are taken. Throws Error
// where a text's tokens are, or io::Error.
std::unique_ptr<tokenize::Tokenizer> load_tokenizer(const std::filesystem::path& directory, int64_t vocabulary);

// Without its tokenizer. Throws Error or io::Error.
TextModel load_model(const TextModelOptions& options);
// Throws Error or io::Error.
TextModel load_text_model(const TextModelOptions& options);

// Ids of a text, all in the vocabulary. what: opens errors. Throws UsageError.
std::vector<int64_t> encode(const tokenize::Tokenizer& tokenizer, int64_t vocabulary, const std::string& text,
                            tokenize::Specials specials, const std::string& what);
std::vector<int64_t> encode(const TextModel& model, const std::string& text, tokenize::Specials specials,
                            const std::string& what);

}  // namespace plimsoll::app
