#include "plimsoll/models/decoder/save.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "plimsoll/io/atomic_file.h"
#include "plimsoll/io/error.h"
#include "plimsoll/io/filesystem_errors.h"
#include "plimsoll/io/json.h"
#include "plimsoll/io/regular_file.h"
#include "plimsoll/io/safetensors.h"
#include "plimsoll/models/decoder/config_json.h"
#include "plimsoll/models/decoder/config_names.h"
#include "plimsoll/models/decoder/tensors.h"
#include "plimsoll/models/weight_files.h"

namespace plimsoll::models {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

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
    const auto is_its = [&](const auto& row) { return row.value == parameter.scalar_type(); };
    if (std::ranges::none_of(kConfigDtypes, is_its)) {
      io::fail("save: expected weights in {}, got {} for '{}'", fmt::join(recipe::names_of(kConfigDtypes), ", "),
               c10::toString(parameter.scalar_type()), tensor.parts.front().name);
    }
    result.merge(stored_parts(tensor, model.config, parameter));
  }
  return result;
}

void write_weights(const io::TensorMap& tensors, const fs::path& directory, int64_t shard_bytes) {
  std::vector<io::TensorPlan> plans;
  for (const auto& [name, tensor] : tensors) plans.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  WeightFiles files(directory, std::move(plans), shard_bytes);
  for (const auto& [name, tensor] : tensors) files.write(name, tensor);
  files.commit();
}

json saved_config(const DecoderImpl& model, const fs::path& source) {
  json config = source.empty() ? json::object() : io::read_json(source / "config.json");
  config.update(decoder_config_json(model.config));
  config.erase("torch_dtype");
  config.erase("quantization_config");  // of a source whose weights were codes
  config["dtype"] = config_dtype_name(model.token_embedding->weight.scalar_type());
  return config;
}

}  // namespace

void copy_companions(const fs::path& source, const fs::path& directory) {
  io::with_our_errors([&] {
    if (fs::equivalent(source, directory)) return;
    for (const std::string_view file : kCopiedFiles) {
      if (fs::exists(source / file)) {
        io::write_file(directory / file, io::read_file(source / file, io::kAnySize));
      }
    }
  });
}

void save_decoder(const DecoderImpl& model, const fs::path& directory, const SaveOptions& options) {
  if (options.shard_bytes < 1) io::fail("save: expected shard_bytes >= 1, got {}", options.shard_bytes);
  const at::NoGradGuard no_grad;
  io::with_our_errors([&] {
    // Steps that may be refused come before the first change of the directory.
    const io::TensorMap tensors = stored_tensors(model);
    const json config = saved_config(model, options.source);
    fs::create_directories(directory);
    if (!options.source.empty()) copy_companions(options.source, directory);
    write_weights(tensors, directory, options.shard_bytes);
    io::write_file(directory / "config.json", config.dump(2) + "\n");
  });
}

}  // namespace plimsoll::models
