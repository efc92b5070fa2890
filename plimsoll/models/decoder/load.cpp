#include "plimsoll/models/decoder/load.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "plimsoll/io/error.h"
#include "plimsoll/io/json.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/models/decoder/config_json.h"
#include "plimsoll/models/decoder/tensors.h"
#include "plimsoll/models/stored_weight.h"
#include "plimsoll/nn/held_codes.h"
#include "plimsoll/nn/undrawn.h"

namespace plimsoll::models {
namespace {

std::string config_name(const io::HuggingFaceDirectory& directory) {
  return (directory.path() / "config.json").native();
}

// The name that the directory has for a tensor.
std::string name_there(const io::HuggingFaceDirectory& directory, const DecoderConfig& config,
                       const std::string& name) {
  if (directory.contains(name)) return name;
  for (const std::string& other : other_names(config, name)) {
    if (directory.contains(other)) return other;
  }
  return name;
}

void check_decoder_tensors(const io::HuggingFaceDirectory& directory, const DecoderConfig& config) {
  check_layers(directory, "num_hidden_layers", config.layers);
  io::HuggingFaceDirectory::Shapes shapes;
  for (const DecoderTensor& tensor : decoder_tensors(config)) {
    for (const StoredPart& part : tensor.parts) shapes.emplace(name_there(directory, config, part.name), part.shape);
  }
  directory.check_tensors(shapes, [&](const std::string& name) { return !is_ignored(config, name); });
}

class DecoderLoader {
 public:
  DecoderLoader(const io::HuggingFaceDirectory& directory, const DecoderConfig& config, at::ScalarType dtype)
      : directory_(directory), config_(config), dtype_(dtype) {}

  at::Tensor parameter(const DecoderTensor& tensor) {
    if (tensor.parts.size() == 1 && tensor.order == StoredOrder::kRows) return converted(tensor.parts[0]);
    const at::Tensor result = at::empty(tensor.shape, dtype_);
    int64_t first = 0;
    for (const StoredPart& part : tensor.parts) {
      const std::string name = name_there(directory_, config_, part.name);
      const at::Tensor rows = rows_of(stored_weight(directory_, name), tensor.order, config_);
      const at::Tensor place = result.narrow(0, first, part.rows);
      place.copy_(rows);
      if (rows.scalar_type() != dtype_) overflowed_.add(name, rows, place);
      directory_.releaser(name)();
      first += part.rows;
    }
    return result;
  }

  // Codes are made of what the file stores, not of its values in dtype_.
  nn::CodeSources sources(const DecoderTensor& tensor) const {
    nn::CodeSources result;
    for (const StoredPart& part : tensor.parts) {
      const std::string name = name_there(directory_, config_, part.name);
      result.push_back({.weight = rows_of(stored_weight(directory_, name), tensor.order, config_),
                        .done = directory_.releaser(name)});
    }
    return result;
  }

  const OverflowedWeights& overflowed() const { return overflowed_; }

 private:
  at::Tensor converted(const StoredPart& part) {
    const std::string name = name_there(directory_, config_, part.name);
    const at::Tensor stored = stored_weight(directory_, name);
    const at::Tensor weight = stored.to(dtype_);
    if (!weight.is_same(stored)) {
      overflowed_.add(name, stored, weight);
      directory_.releaser(name)();
    }
    return weight;
  }

  const io::HuggingFaceDirectory& directory_;
  const DecoderConfig& config_;
  at::ScalarType dtype_;
  OverflowedWeights overflowed_;
};

Decoder undrawn_decoder(const io::HuggingFaceDirectory& directory, const DecoderConfig& config) {
  try {
    return Decoder(config);
  } catch (const c10::ValueError& error) {
    io::fail("{}: {}", config_name(directory), std::string(error.what_without_backtrace()));
  }
}

at::ScalarType stored_dtype(const io::HuggingFaceDirectory& directory, const DecoderConfig& config) {
  if (const auto dtype = read_config_dtype(directory.config(), config_name(directory))) return *dtype;
  const std::string embedding = decoder_tensors(config).front().parts.front().name;
  return stored_weight(directory, name_there(directory, config, embedding)).scalar_type();
}

}  // namespace

DecoderConfig decoder_config(const io::HuggingFaceDirectory& directory) {
  try {
    DecoderConfig config = read_decoder_config(directory.config(), config_name(directory));
    const std::filesystem::path generation = directory.path() / "generation_config.json";
    if (std::filesystem::exists(generation)) {
      read_generation_config(io::read_json(generation), generation.native(), config);
    }
    return config;
  } catch (const c10::ValueError& error) {
    io::fail("{}: {}", config_name(directory), std::string(error.what_without_backtrace()));
  }
}

Decoder load_decoder(const io::HuggingFaceDirectory& directory, const LoadOptions& options) {
  const at::NoGradGuard no_grad;
  const DecoderConfig config = decoder_config(directory);
  check_decoder_tensors(directory, config);  // before there is a model of whatever size config.json says
  const nn::UndrawnParameters undrawn;
  Decoder model = undrawn_decoder(directory, config);
  const at::ScalarType computed = computed_in(options.dtype, stored_dtype(directory, config));
  DecoderLoader loader(directory, config, computed);
  auto parameters = model->named_parameters();
  std::map<std::string, DecoderTensor> tensors;
  for (DecoderTensor& tensor : decoder_tensors(config)) tensors.emplace(tensor.parameter, std::move(tensor));
  const std::optional<ops::CodeKind> kind = code_kind(options.dtype);
  const auto is_held = [&](const std::string& name) {
    return kind && parameters[name].dim() == 2 && !name.ends_with("embedding.weight") && name != "head.weight" &&
           !config.keeps_in_high_precision(name);
  };
  for (const auto& [name, tensor] : tensors) {
    parameters[name].set_data(is_held(name) ? at::empty({1}, computed).expand(tensor.shape) : loader.parameter(tensor));
  }
  if (kind) {
    ops::HeldOptions held = options.codes;
    held.kind = *kind;
    nn::hold_codes(
        *model, [&](const std::string& name) { return loader.sources(tensors.at(name)); }, held);
  }
  io::check_mapped_files();
  if (loader.overflowed().count() > 0 && options.warn) {
    options.warn(fmt::format("{}: {}", directory.path().native(), loader.overflowed().text()));
  }
  model->eval();
  return model;
}

}  // namespace plimsoll::models
