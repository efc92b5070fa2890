#include "plimsoll/app/text/served_texts.h"

#include "plimsoll/app/t5/t5_inputs.h"
#include "plimsoll/models/t5/paged.h"

namespace plimsoll::app {
namespace {

ServedTexts load_t5(const TextModelOptions& options) {
  expect_tokenizer(options.path, "which makes ids of prompts and texts of replies");
  const auto model = models::load_paged_t5(options.path, options.dtype, options.warn);
  const models::T5Config& config = model->config();
  return {.directory = options.path,
          .model = model,
          .decoder = nullptr,
          .vocabulary = config.vocab_size,
          .tokenizer = std::make_unique<tokenize::T5Tokenizer>(options.path, config.vocab_size),
          .ends = {config.eos_token_id},
          .generation = models::read_generation_defaults(options.path)};
}

}  // namespace

ServedTexts load_served_texts(const TextModelOptions& options) {
  if (models::is_t5_directory(options.path)) return load_t5(options);
  TextModel text = load_text_model(options);
  return {.directory = std::move(text.directory),
          .model = text.model,
          .decoder = text.model,
          .recipe = text.recipe,
          .vocabulary = vocabulary_of(*text.model),
          .tokenizer = std::move(text.tokenizer),
          .ends = std::move(text.ends),
          .generation = text.generation};
}

}  // namespace plimsoll::app
