#include "plimsoll/models/decoder/load.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "plimsoll/io/error.h"
#include "plimsoll/io/json.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/models/decoder/config_json.h"
#include "plimsoll/models/decoder/tensors.h"
#include "plimsoll/models/stored_codes.h"
#include "plimsoll/models/stored_weight.h"
#include "plimsoll/nn/held_codes.h"
#include "plimsoll/nn/undrawn.h"
#include "plimsoll/ops/linear/decode_codes.h"

namespace plimsoll::models {
namespace {

std::string config_name(const io::HuggingFaceDirectory& directory) {
  return (directory.path() / "config.json").native();
}

class DecoderLoader {
 public:
  DecoderLoader(const io::HuggingFaceDirectory& directory, const StoredCodes& codes, const DecoderConfig& config,
                at::ScalarType dtype)
      : directory_(directory), codes_(codes), config_(config), dtype_(dtype) {}

  // The kind of codes that the directory has of a parameter; none: it has values.
  std::optional<ops::CodeKind> kind(const DecoderTensor& tensor) const {
    if (tensor.shape.size() != 2) return std::nullopt;
    const std::optional<ops::CodeKind> first = codes_.kind(there(tensor.parts.front()));
    for (const StoredPart& part : tensor.parts) {
      if (codes_.kind(there(part)) == first) continue;
      io::fail("{}: tensor '{}': expected the layout of '{}', with which it is multiplied at once, got another",
               directory_.path().native(), there(part), there(tensor.parts.front()));
    }
    if (first && tensor.order == StoredOrder::kTransposed) {
      io::fail("{}: tensor '{}': expected values of a matrix that is stored as [in, out], got codes",
               directory_.path().native(), there(tensor.parts.front()));
    }
    return first;
  }

  at::Tensor parameter(const DecoderTensor& tensor) {
    if (const auto codes = kind(tensor)) return decoded(tensor, *codes);
    if (tensor.parts.size() == 1 && tensor.order == StoredOrder::kRows) return converted(tensor.parts[0]);
    const at::Tensor result = at::empty(tensor.shape, dtype_);
    int64_t first = 0;
    for (const StoredPart& part : tensor.parts) {
      const std::string name = there(part);
      const at::Tensor rows = rows_of(stored_weight(directory_, name), tensor.order, config_);
      const at::Tensor place = result.narrow(0, first, part.rows);
      place.copy_(rows);
      if (rows.scalar_type() != dtype_) overflowed_.add(name, rows, place);
      directory_.releaser(name)();
      first += part.rows;
    }
    return result;
  }

  // Codes are those of the file, or made of what the file stores, not of its values in dtype_.
  nn::CodeSources sources(const DecoderTensor& tensor) const {
    nn::CodeSources result;
    const bool is_coded = kind(tensor).has_value();
    for (const StoredPart& part : tensor.parts) {
      const std::string name = there(part);
      if (is_coded) {
        ops::CodeSource source = codes_.read(name);
        source.stored.codes = rows_of(source.stored.codes, tensor.order, config_);
        source.stored.scale = rows_of(source.stored.scale, tensor.order, config_);
        result.push_back(std::move(source));
        continue;
      }
      result.push_back({.weight = rows_of(stored_weight(directory_, name), tensor.order, config_),
                        .done = directory_.releaser(name)});
    }
    return result;
  }

  const OverflowedWeights& overflowed() const { return overflowed_; }

 private:
  std::string there(const StoredPart& part) const { return name_there(codes_, config_, part.name); }

  at::Tensor decoded(const DecoderTensor& tensor, ops::CodeKind codes) {
    const nn::CodeSources from = sources(tensor);
    const at::Tensor values = ops::decode_codes(from, codes, dtype_);
    if (dtype_ == at::kHalf) {  // the others hold what FP32 does
      overflowed_.add(there(tensor.parts.front()), ops::decode_codes(from, codes, at::kFloat), values);
    }
    for (const ops::CodeSource& source : from) source.done();
    return values;
  }

  at::Tensor converted(const StoredPart& part) {
    const std::string name = there(part);
    const at::Tensor stored = stored_weight(directory_, name);
    const at::Tensor weight = stored.to(dtype_);
    if (!weight.is_same(stored)) {
      overflowed_.add(name, stored, weight);
      directory_.releaser(name)();
    }
    return weight;
  }

  const io::HuggingFaceDirectory& directory_;
  const StoredCodes& codes_;
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

at::ScalarType stored_dtype(const io::HuggingFaceDirectory& directory, const StoredCodes& codes,
                            const DecoderConfig& config) {
  if (const auto dtype = read_config_dtype(directory.config(), config_name(directory))) return *dtype;
  const std::string embedding = embedding_module(config) + ".weight";
  return stored_weight(directory, name_there(codes, config, embedding)).scalar_type();
}

bool unties_head(const io::HuggingFaceDirectory& directory, const DecoderConfig& config) {
  const StoredCodes codes(directory);
  const std::string head = name_there(codes, config, head_module(config) + ".weight");
  if (codes.kind(head)) return true;  // the embedding never is codes
  return has_own_head(directory, head, name_there(codes, config, embedding_module(config) + ".weight"));
}

// Whether the caller takes codes that the directory has, and says which of its scales nothing reads.
void check_coded_weights(const io::HuggingFaceDirectory& directory, const StoredCodes& codes,
                         const LoadOptions& options) {
  if (!codes.any()) return;
  if (options.coded == CodedWeights::kRefused) {
    io::fail(
        "{}: quantization_config: expected weights that are values, got codes; `plimsoll convert --dtype bf16` "
        "makes values of them",
        config_name(directory));
  }
  if (code_kind(options.dtype)) {
    io::fail(
        "{}: quantization_config: expected stored, fp32, bf16 or fp16 as the dtype of weights that are codes, got {}",
        config_name(directory), recipe::name_of(kWeightDtypes, options.dtype));
  }
  const std::vector<std::string> scales = codes.activation_scales();
  if (!scales.empty() && options.warn) {
    options.warn(fmt::format("{}: {} scales of activations ({}, ...) are not read: products keep activations as values",
                             directory.path().native(), scales.size(), scales.front()));
  }
}

}  // namespace

std::string name_there(const StoredCodes& directory, const DecoderConfig& config, const std::string& name) {
  if (directory.has(name)) return name;
  for (const std::string& other : other_names(config, name)) {
    if (directory.has(other)) return other;
  }
  return name;
}

void check_decoder_tensors(const io::HuggingFaceDirectory& directory, const StoredCodes& codes,
                           const DecoderConfig& config) {
  check_layers(directory, "num_hidden_layers", config.layers);
  io::HuggingFaceDirectory::Shapes shapes;
  for (const DecoderTensor& tensor : decoder_tensors(config)) {
    for (const StoredPart& part : tensor.parts) {
      const std::string name = name_there(codes, config, part.name);
      if (part.shape.size() == 2) {
        codes.expect(name, part.shape, shapes);
      } else {
        shapes.emplace(name, part.shape);
      }
    }
  }
  directory.check_tensors(shapes, [&](const std::string& name) { return !is_ignored(config, name); });
}

DecoderConfig decoder_config(const io::HuggingFaceDirectory& directory) {
  try {
    DecoderConfig config = read_decoder_config(directory.config(), config_name(directory));
    const std::filesystem::path generation = directory.path() / "generation_config.json";
    if (std::filesystem::exists(generation)) {
      read_generation_config(io::read_json(generation), generation.native(), config);
    }
    config.ties_head = config.ties_head && !unties_head(directory, config);
    return config;
  } catch (const c10::ValueError& error) {
    io::fail("{}: {}", config_name(directory), std::string(error.what_without_backtrace()));
  }
}

Decoder load_decoder(const io::HuggingFaceDirectory& directory, const LoadOptions& options) {
  const at::NoGradGuard no_grad;
  const DecoderConfig config = decoder_config(directory);
  const StoredCodes codes(directory);
  codes.expect_codes();
  check_coded_weights(directory, codes, options);
  check_decoder_tensors(directory, codes, config);  // before there is a model of whatever size config.json says
  const nn::UndrawnParameters undrawn;
  Decoder model = undrawn_decoder(directory, config);
  const at::ScalarType computed = computed_in(options.dtype, stored_dtype(directory, codes, config));
  DecoderLoader loader(directory, codes, config, computed);
  std::map<std::string, DecoderTensor> tensors;
  for (DecoderTensor& tensor : decoder_tensors(config)) tensors.emplace(tensor.parameter, std::move(tensor));
  const std::vector<nn::ProductWeight> products = nn::weights_with_codes(*model);
  std::map<std::string, ops::CodeKind> held;  // by the parameter's name
  for (const nn::ProductWeight& product : products) {
    const std::optional<ops::CodeKind> made = code_kind(options.dtype);
    const auto kind = made ? made : loader.kind(tensors.at(product.name));
    if (kind && options.coded != CodedWeights::kDecoded) held.emplace(product.name, *kind);
  }
  auto parameters = model->named_parameters();
  for (const auto& [name, tensor] : tensors) {
    const bool is_held = held.contains(name);
    if (!is_held && options.coded == CodedWeights::kHeld && loader.kind(tensor)) {
      io::fail("{}: tensor '{}': expected values of a weight that no product has as codes, got codes",
               directory.path().native(), tensor.parts.front().name);
    }
    parameters[name].set_data(is_held ? at::empty({1}, computed).expand(tensor.shape) : loader.parameter(tensor));
  }
  for (const nn::ProductWeight& product : products) {
    const auto found = held.find(product.name);
    if (found == held.end()) continue;
    ops::HeldOptions how = options.codes;
    how.kind = found->second;
    nn::hold_codes(product.weight, *product.state, loader.sources(tensors.at(product.name)), how);
  }
  io::check_mapped_files();
  if (loader.overflowed().count() > 0 && options.warn) {
    options.warn(fmt::format("{}: {}", directory.path().native(), loader.overflowed().text()));
  }
  model->eval();
  return model;
}

}  // namespace plimsoll::models
