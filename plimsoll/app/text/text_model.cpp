#include "plimsoll/app/text/text_model.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "plimsoll/app/error.h"
#include "plimsoll/app/train/trained_model.h"
#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/lora/lora.h"
#include "plimsoll/nn/held_codes.h"
#include "plimsoll/tokenize/byte_tokenizer.h"
#include "plimsoll/tokenize/load.h"

namespace plimsoll::app {
namespace {

// Tokens that end a text of a model that began as a Hugging Face directory.
std::vector<int64_t> ends_of(const models::LanguageModel& model) {
  const auto* decoder = dynamic_cast<const models::DecoderImpl*>(&model);
  return decoder == nullptr ? std::vector<int64_t>() : decoder->config.eos_token_ids;
}

TextModel load_directory(const TextModelOptions& options) {
  models::LoadedModel loaded =
      models::load(options.path, {.dtype = options.dtype, .coded = options.coded, .warn = options.warn});
  return {.directory = options.path,
          .model = std::move(loaded.model),
          .recipe = std::nullopt,
          .tokenizer = nullptr,
          .ends = std::move(loaded.eos_token_ids),
          .generation = models::read_generation_defaults(options.path)};
}

TextModel load_run(const TextModelOptions& options) {
  if (options.dtype != models::WeightDtype::kAsStored) {
    refuse(
        "--dtype {}: expected a Hugging Face directory, which plimsoll convert makes of a run, got the run {}, which "
        "computes by its recipe",
        recipe::name_of(models::kWeightDtypes, options.dtype), options.path.native());
  }
  TrainedModel trained = load_trained_model(options.path, options.warn);
  std::vector<int64_t> ends = ends_of(*trained.model);
  const std::filesystem::path run = directory_of_run(options.path);
  const bool was_a_directory = std::filesystem::exists(run / "config.json");
  return {.directory = run,
          .model = std::move(trained.model),
          .recipe = trained.recipe,
          .tokenizer = nullptr,
          .ends = std::move(ends),
          .generation = was_a_directory ? models::read_generation_defaults(run) : models::GenerationDefaults{},
          .step = trained.step,
          .high_precision_tail = trained.high_precision_tail};
}

}  // namespace

std::filesystem::path directory_of_run(const std::filesystem::path& path) {
  return std::filesystem::exists(path / "manifest.json") ? std::filesystem::canonical(path).parent_path() : path;
}

int64_t vocabulary_of(const models::LanguageModel& model) {
  const nlohmann::json shape = model.shape();
  return shape.value("vocab_size", shape.value("vocabulary", tokenize::kByteVocabulary));
}

double bytes_per_weight(models::LanguageModel& model) {
  std::map<const at::TensorImpl*, ops::CodeKind> codes;  // of parameters whose layers hold some in their place
  for (const nn::ProductWeight& product : nn::weights_with_codes(model.module())) {
    const auto& held = product.state->weight_source.held();
    if (held != nullptr) codes.emplace(product.weight.unsafeGetTensorImpl(), held->kind());
  }
  double bytes = 0, count = 0;
  for (const at::Tensor& parameter : model.module().parameters()) {
    const auto elements = static_cast<double>(parameter.numel());
    const auto found = codes.find(parameter.unsafeGetTensorImpl());
    bytes += found != codes.end() ? ops::bytes_of_codes(found->second, parameter.size(0), parameter.size(1))
                                  : elements * static_cast<double>(parameter.element_size());
    count += elements;
  }
  return bytes / count;
}

std::unique_ptr<tokenize::Tokenizer> load_tokenizer(const std::filesystem::path& directory, int64_t vocabulary) {
  auto tokenizer = tokenize::load(directory, vocabulary);
  for (int64_t id = vocabulary; id < tokenizer->size(); ++id) {
    const int64_t ids[] = {id};
    if (tokenizer->decode_part(ids, tokenize::Specials::kWithout).text.empty()) continue;
    fail("{}: expected a tokenizer for the {} tokens of the model, got one of {}", directory.native(), vocabulary,
         tokenizer->size());
  }
  return tokenizer;
}

TextModel load_model(const TextModelOptions& options) {
  const bool has_run = is_run(options.path);
  const bool is_directory = !has_run && std::filesystem::exists(options.path / "config.json");
  if (!has_run && !is_directory) {
    fail("{}: expected a Hugging Face directory with its config.json, a checkpoint or a run with one, got none",
         options.path.native());
  }
  TextModel model = is_directory ? load_directory(options) : load_run(options);
  if (!options.adapter.empty()) models::load_adapter(*model.model, options.adapter);
  return model;
}

TextModel load_text_model(const TextModelOptions& options) {
  TextModel model = load_model(options);
  const int64_t vocabulary = vocabulary_of(*model.model);
  model.tokenizer = load_tokenizer(model.directory, vocabulary);
  const auto end = model.tokenizer->eos();
  // The model cannot write one beyond its vocabulary.
  if (end && *end < vocabulary && std::ranges::find(model.ends, *end) == model.ends.end()) model.ends.push_back(*end);
  return model;
}

std::vector<int64_t> encode(const TextModel& model, const std::string& text, tokenize::Specials specials,
                            const std::string& what) {
  return encode(*model.tokenizer, vocabulary_of(*model.model), text, specials, what);
}

std::vector<int64_t> encode(const tokenize::Tokenizer& tokenizer, int64_t vocabulary, const std::string& text,
                            tokenize::Specials specials, const std::string& what) {
  std::vector<int64_t> ids;
  try {
    ids = tokenizer.encode(text, specials);
  } catch (const io::Error& error) {
    refuse("{}: {}", what, std::string(error.what()));
  }
  for (const int64_t id : ids) {
    if (id < vocabulary) continue;
    refuse("{}: expected tokens of the model's {}, got '{}', which is none", what, vocabulary,
           tokenizer.id_to_token(id).value_or(""));
  }
  return ids;
}

}  // namespace plimsoll::app
