#include "plimsoll/app/train/first_model.h"

#include <ATen/Context.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "plimsoll/app/error.h"
#include "plimsoll/app/text/encoded_text.h"
#include "plimsoll/app/text/text_model.h"
#include "plimsoll/io/json.h"
#include "plimsoll/io/text_files.h"
#include "plimsoll/models/decoder/config_json.h"
#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/families.h"
#include "plimsoll/models/load.h"

namespace plimsoll::app {
namespace {

constexpr int64_t kUsualContext = 512;  // of a Hugging Face model that sees more

}  // namespace

models::DecoderConfig config_of_directory(const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / "config.json";
  return models::read_decoder_config(io::read_json(file), file.native());
}

int64_t training_context(const TrainOptions& options) {
  const auto directory = hugging_face_directory(options);
  if (!directory) return sizes_of(options).context;
  const int64_t most = config_of_directory(*directory).context;
  const int64_t context = options.context.value_or(std::min(most, kUsualContext));
  if (context > most) refuse("--context: expected at most the {} tokens that the model sees, got {}", most, context);
  return context;
}

std::unique_ptr<const io::Tokens> training_tokens(const TrainOptions& options) {
  const std::vector<std::filesystem::path> files = io::find_text_files(options.data);
  const auto directory = hugging_face_directory(options);
  if (!directory) return std::make_unique<io::ByteTokens>(io::Text(files));
  const int64_t vocabulary = config_of_directory(*directory).vocabulary;
  return std::make_unique<EncodedText>(files, *load_tokenizer(*directory, vocabulary));
}

std::shared_ptr<models::LanguageModel> first_model(const TrainOptions& options) {
  if (!options.source.empty()) {
    const models::LoadedModel loaded = models::load(options.source, {.dtype = models::WeightDtype::kFp32});
    at::manual_seed(static_cast<uint64_t>(options.seed));
    return loaded.model;
  }
  if (!options.config_of.empty()) {
    at::manual_seed(static_cast<uint64_t>(options.seed));
    return models::Decoder(config_of_directory(options.config_of)).ptr();
  }
  return models::make_language_model(shape_of(options), options.seed);
}

}  // namespace plimsoll::app
