#include "plimsoll/models/decoder/family.h"

#include <nlohmann/json.hpp>

#include "plimsoll/io/error.h"
#include "plimsoll/models/decoder/config_json.h"
#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/decoder/tensors.h"

namespace plimsoll::models {
namespace {

DecoderConfig config_of(const nlohmann::json& shape) { return read_decoder_config(shape, "checkpoint: shape"); }

}  // namespace

void check_decoder(const nlohmann::json& shape, const StoredTensors& tensors) {
  const DecoderConfig config = config_of(shape);
  if (config.layers > static_cast<int64_t>(tensors.size())) {
    io::fail("checkpoint: expected the tensors of {} layers, as state.json says, got {} tensors", config.layers,
             tensors.size());
  }
  for (const auto& [name, expected] : decoder_parameter_shapes(config)) check_stored(tensors, name, expected);
}

std::shared_ptr<LanguageModel> make_decoder(const nlohmann::json& shape) { return Decoder(config_of(shape)).ptr(); }

}  // namespace plimsoll::models
