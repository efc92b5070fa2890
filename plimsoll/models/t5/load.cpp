#include "plimsoll/models/t5/load.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "plimsoll/io/error.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/models/stored_weight.h"
#include "plimsoll/models/t5/read_config.h"
#include "plimsoll/models/t5/shapes.h"

namespace plimsoll::models {
namespace {

// Older checkpoints' copies of other tensors, and a table that nothing reads.
bool is_ignored(const std::string& name, const T5Config& config) {
  return name == "encoder.embed_tokens.weight" || name == "decoder.embed_tokens.weight" ||
         name == "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight" ||
         (name == "lm_head.weight" && config.tie_word_embeddings) ||
         (config.encoder_only && (name.starts_with("decoder.") || name == "lm_head.weight"));
}

bool is_of_model(const std::string& name, const T5Config& config) {
  constexpr std::array<std::string_view, 4> kRoots = {"shared.", "encoder.", "decoder.", "lm_head."};
  return !is_ignored(name, config) &&
         std::any_of(kRoots.begin(), kRoots.end(), [&](std::string_view root) { return name.starts_with(root); });
}

// The name under which a parameter is stored.
std::string stored_name(const io::HuggingFaceDirectory& directory, const std::string& parameter) {
  constexpr const char* kOfEncoders = "encoder.embed_tokens.weight";
  const bool other = parameter == "shared.weight" && !directory.contains(parameter) && directory.contains(kOfEncoders);
  return other ? kOfEncoders : parameter;
}

at::Tensor weight_of(const io::HuggingFaceDirectory& directory, const std::string& parameter) {
  return stored_weight(directory, stored_name(directory, parameter));
}

// Throws Error unless the tensors are those of a T5 of this config.
void check_tensors(const io::HuggingFaceDirectory& directory, const T5Config& config) {
  check(config);
  check_layers(directory, "num_layers", config.num_layers);
  check_layers(directory, "num_decoder_layers", config.num_decoder_layers);
  io::HuggingFaceDirectory::Shapes shapes;
  for (auto& [parameter, shape] : t5_parameter_shapes(config)) {
    shapes.emplace(stored_name(directory, parameter), shape);
  }
  directory.check_tensors(shapes, [&](const std::string& name) { return is_of_model(name, config); });
}

T5ForConditionalGeneration undrawn_t5(const io::HuggingFaceDirectory& directory, const T5Config& config) {
  try {
    return T5ForConditionalGeneration(config);
  } catch (const c10::ValueError& error) {  // of a name in its plan; all else has been checked
    io::fail("{}: {}", (directory.path() / "config.json").native(), std::string(error.what_without_backtrace()));
  }
}

}  // namespace

T5ForConditionalGeneration load_t5(const io::HuggingFaceDirectory& directory, T5Dtype dtype, const Warn& warn,
                                   T5Parts parts) {
  const at::NoGradGuard no_grad;
  T5Config config = t5_config(directory);
  config.encoder_only |= parts == T5Parts::kEncoder;
  check_tensors(directory, config);  // before there is a model of whatever size config.json says
  T5ForConditionalGeneration model = undrawn_t5(directory, config);
  const at::Tensor table = weight_of(directory, "shared.weight");
  const at::ScalarType computed = computed_in(dtype, table.scalar_type());
  OverflowedWeights overflowed;
  // A weight in the dtype of the computation. A converted weight has its own memory; the file's pages are given back
  // then.
  const auto converted = [&](const std::string& name) {
    const at::Tensor stored = weight_of(directory, name);
    const at::Tensor weight = stored.to(computed);
    if (!weight.is_same(stored)) {
      overflowed.add(name, stored, weight);
      directory.releaser(stored_name(directory, name))();
    }
    return weight;
  };
  const std::optional<ops::CodeKind> kind = code_kind(dtype);
  const bool has_tied_head = !config.encoder_only && config.tie_word_embeddings;
  for (const auto& item : model->named_modules("", /*include_self=*/false)) {
    const std::string name = item.key() + ".weight";
    if (auto* linear = dynamic_cast<T5LinearImpl*>(item.value().get())) {
      if (kind && linear->takes_codes()) {
        const ops::CodeKind own = name == "lm_head.weight" ? kT5HeadCodes : *kind;
        linear->quantize({.weight = weight_of(directory, name), .done = directory.releaser(name)}, own);
      } else {
        linear->weight().set_data(converted(name));
      }
    } else if (auto* held = dynamic_cast<T5WeightImpl*>(item.value().get())) {
      // With codes, few rows of the embedding are ever read: it stays as it is stored, unless it is the head's weight.
      const bool stays = name == "shared.weight" && kind.has_value() && (!has_tied_head || model->head().takes_codes());
      held->weight.set_data(stays ? table : converted(name));
    }
  }
  if (kind && has_tied_head && model->head().takes_codes()) {
    model->head().quantize({.weight = table}, kT5HeadCodes);  // which may have been written to by then: its pages stay
  }
  io::check_mapped_files();
  if (overflowed.count() > 0) warn(fmt::format("{}: {}", directory.path().native(), overflowed.text()));
  model->eval();
  return model;
}

}  // namespace plimsoll::models
