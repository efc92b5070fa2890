// A model to serve, a decoder-only one or a T5, with the tokenizer of its texts.
#pragma once

#include "plimsoll/app/text/text_model.h"
#include "plimsoll/models/paged_model.h"

namespace plimsoll::app {

struct ServedTexts {
  std::filesystem::path directory;  // of the tokenizer and its chat template
  std::shared_ptr<models::PagedModel> model;
  std::shared_ptr<models::LanguageModel> decoder;  // the same model, or nullptr: a T5
  std::optional<recipe::Recipe> recipe = {};       // as of TextModel
  int64_t vocabulary = 0;
  std::unique_ptr<tokenize::Tokenizer> tokenizer;
  std::vector<int64_t> ends;  // tokens that end a text
  models::GenerationDefaults generation = {};
};

// As load_text_model(), and T5s with their spiece.model. Throws Error or io::Error.
ServedTexts load_served_texts(const TextModelOptions& options);

}  // namespace plimsoll::app
