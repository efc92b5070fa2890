#include "plimsoll/models/gpt/family.h"

#include <nlohmann/json.hpp>

#include "plimsoll/io/error.h"
#include "plimsoll/models/gpt/model.h"
#include "plimsoll/models/gpt/shapes.h"

namespace plimsoll::models {

nlohmann::json gpt_shape_of(const Sizes& sizes) {
  const GptConfig config{.layers = sizes.layers, .dim = sizes.dim, .heads = sizes.heads, .context = sizes.context};
  check_sizes(config);
  return config;
}

void check_gpt(const nlohmann::json& shape, const StoredTensors& tensors) {
  const auto config = shape.get<GptConfig>();
  check_sizes(config);
  // The two embeddings hold the sizes of all others, and the number of tensors that of the layers, so that the rest is
  // no more than the file.
  check_stored(tensors, "token_embedding.weight", {config.vocabulary, config.dim});
  check_stored(tensors, "position_embedding.weight", {config.context, config.dim});
  if (config.layers > static_cast<int64_t>(tensors.size())) {
    io::fail("checkpoint: expected the tensors of {} layers, as state.json says, got {} tensors", config.layers,
             tensors.size());
  }
  for (const auto& [name, expected] : gpt_parameter_shapes(config)) check_stored(tensors, name, expected);
}

std::shared_ptr<LanguageModel> make_gpt(const nlohmann::json& shape) { return Gpt(shape.get<GptConfig>()).ptr(); }

}  // namespace plimsoll::models
