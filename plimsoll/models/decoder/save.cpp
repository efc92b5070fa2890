#include "plimsoll/models/decoder/save.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "plimsoll/io/atomic_file.h"
#include "plimsoll/io/error.h"
#include "plimsoll/io/filesystem_errors.h"
#include "plimsoll/io/json.h"
#include "plimsoll/io/safetensors.h"
#include "plimsoll/models/decoder/config_json.h"
#include "plimsoll/models/decoder/tensors.h"

namespace plimsoll::models {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// Files beside the weights. config.json is written anew with a model.
constexpr std::array<std::string_view, 13> kCopiedFiles = {"config.json",
                                                           "tokenizer.json",
                                                           "tokenizer_config.json",
                                                           "special_tokens_map.json",
                                                           "added_tokens.json",
                                                           "vocab.json",
                                                           "merges.txt",
                                                           "tokenizer.model",
                                                           "spiece.model",
                                                           "chat_template.jinja",
                                                           "chat_template.json",
                                                           "generation_config.json",
                                                           "README.md"};

// The tensors of files by name; they share storage with the model where the order is that of rows.
io::TensorMap stored_tensors(const DecoderImpl& model) {
  io::TensorMap result;
  const auto parameters = model.named_parameters();
  const std::vector<DecoderTensor> tensors = decoder_tensors(model.config);
  if (parameters.size() != tensors.size()) {
    io::fail("save: expected a model without adapters; merge them first, or save them by themselves");
  }
  for (const DecoderTensor& tensor : tensors) {
    const at::Tensor parameter = parameters[tensor.parameter].detach();
    if (!parameter.is_non_overlapping_and_dense()) {
      io::fail("save: expected weights, got FP8 codes; load the model with another dtype");
    }
    result.merge(stored_parts(tensor, model.config, parameter));
  }
  return result;
}

// Tensors in the order of their names, cut where a file would grow beyond `bytes`.
std::vector<io::TensorMap> shards_of(const io::TensorMap& tensors, int64_t bytes) {
  std::vector<io::TensorMap> shards(1);
  int64_t held = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto size = static_cast<int64_t>(tensor.nbytes());
    if (held > 0 && held + size > bytes) {
      shards.emplace_back();
      held = 0;
    }
    shards.back().emplace(name, tensor);
    held += size;
  }
  return shards;
}

const io::SafetensorsMetadata& metadata() {
  static const io::SafetensorsMetadata kMetadata = {{"format", "pt"}};  // transformers asks for it
  return kMetadata;
}

void write_weights(const io::TensorMap& tensors, const fs::path& directory, int64_t shard_bytes) {
  const std::vector<io::TensorMap> shards = shards_of(tensors, shard_bytes);
  if (shards.size() == 1) {
    io::save_safetensors(directory / kWeightsFile, tensors, metadata());
    fs::remove(directory / kIndexFile);
    return;
  }
  json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", json::object()}};
  int64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    io::save_safetensors(directory / file, shards[i], metadata());
    for (const auto& [name, tensor] : shards[i]) {
      index["weight_map"][name] = file;
      total += static_cast<int64_t>(tensor.nbytes());
    }
  }
  index["metadata"]["total_size"] = total;
  io::write_file(directory / kIndexFile, index.dump(2) + "\n");
  fs::remove(directory / kWeightsFile);  // of an earlier model: readers prefer it to the shards
}

void write_config(const DecoderImpl& model, const fs::path& directory, const fs::path& source) {
  json config = source.empty() ? json::object() : io::read_json(source / "config.json");
  config.update(decoder_config_json(model.config));
  config.erase("torch_dtype");
  config["dtype"] = config_dtype_name(model.token_embedding->weight.scalar_type());
  io::write_file(directory / "config.json", config.dump(2) + "\n");
}

}  // namespace

void copy_companions(const fs::path& source, const fs::path& directory) {
  io::with_our_errors([&] {
    if (fs::equivalent(source, directory)) return;
    for (const std::string_view file : kCopiedFiles) {
      if (fs::exists(source / file)) {
        fs::copy_file(source / file, directory / file, fs::copy_options::overwrite_existing);
      }
    }
  });
}

void save_decoder(const DecoderImpl& model, const fs::path& directory, const SaveOptions& options) {
  if (options.shard_bytes < 1) io::fail("save: expected shard_bytes >= 1, got {}", options.shard_bytes);
  const at::NoGradGuard no_grad;
  io::with_our_errors([&] {
    fs::create_directories(directory);
    if (!options.source.empty()) copy_companions(options.source, directory);
    write_weights(stored_tensors(model), directory, options.shard_bytes);
    write_config(model, directory, options.source);
  });
}

}  // namespace plimsoll::models
