#include "plimsoll/models/load.h"

#include "plimsoll/io/error.h"
#include "plimsoll/io/json.h"
#include "plimsoll/models/decoder/config_json.h"
#include "plimsoll/models/decoder/load.h"
#include "plimsoll/models/decoder/save.h"
#include "plimsoll/models/quantization_config.h"

namespace plimsoll::models {

bool is_decoder_directory(const std::filesystem::path& directory) {
  const std::filesystem::path config = directory / "config.json";
  return std::filesystem::exists(config) && is_decoder(io::read_json(config));
}

bool has_coded_weights(const std::filesystem::path& directory) {
  const std::filesystem::path config = directory / "config.json";
  return std::filesystem::exists(config) &&
         read_quantization_config(io::read_json(config), config.native()).has_value();
}

LoadedModel load(const std::filesystem::path& directory, const LoadOptions& options) {
  const Decoder model = load_decoder(io::HuggingFaceDirectory(directory), options);
  const DecoderConfig& config = model->config;
  return {.model = model.ptr(),
          .dtype = model->token_embedding->weight.scalar_type(),
          .eos_token_ids = config.eos_token_ids,
          .bos_token_id = config.bos_token_id,
          .pad_token_id = config.pad_token_id};
}

void save(const LanguageModel& model, const std::filesystem::path& directory, const SaveOptions& options) {
  const auto* decoder = dynamic_cast<const DecoderImpl*>(&model);
  if (decoder == nullptr) io::fail("{}: expected a model of a Hugging Face family, got another", directory.native());
  save_decoder(*decoder, directory, options);
}

}  // namespace plimsoll::models
