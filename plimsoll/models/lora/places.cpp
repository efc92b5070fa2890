#include "plimsoll/models/lora/places.h"

#include <algorithm>

namespace plimsoll::models {
namespace {

constexpr std::string_view kWeight = "weight";

std::string without_weight(const std::string& name) { return name.substr(0, name.size() - kWeight.size() - 1); }

std::string last_part(const std::string& name) { return name.substr(name.rfind('.') + 1); }

LoraPlace place_of(const DecoderTensor& tensor) {
  const std::string last = last_part(tensor.parameter);
  LoraPlace place{.layer = tensor.parameter.substr(0, tensor.parameter.size() - last.size() - 1),
                  .prefix = last == kWeight ? std::string() : without_weight(last),
                  .in_features = tensor.shape[1],
                  .order = tensor.order,
                  .modules = {}};
  int64_t first = 0;
  for (const StoredPart& part : tensor.parts) {
    const std::string name = without_weight(part.name);
    place.modules.push_back({name, {.name = last_part(name), .first_row = first, .rows = part.rows}});
    first += part.rows;
  }
  return place;
}

}  // namespace

std::vector<LoraPlace> lora_places(const DecoderConfig& config) {
  std::vector<LoraPlace> places;
  for (const DecoderTensor& tensor : decoder_tensors(config)) {
    if (tensor.shape.size() == 2 && tensor.parameter.starts_with("blocks.")) places.push_back(place_of(tensor));
  }
  return places;
}

const DecoderImpl& lora_decoder(const LanguageModel& model) {
  const auto* decoder = dynamic_cast<const DecoderImpl*>(&model);
  TORCH_CHECK_VALUE(decoder != nullptr, "lora: expected a model of a Hugging Face family, got another");
  return *decoder;
}

DecoderImpl& lora_decoder(LanguageModel& model) {
  return const_cast<DecoderImpl&>(lora_decoder(static_cast<const LanguageModel&>(model)));
}

nn::ScaledLayer& layer_of(const torch::nn::Module& model, const LoraPlace& place) {
  const auto modules = model.named_modules();
  const auto* module = modules.find(place.layer);
  TORCH_INTERNAL_ASSERT(module != nullptr, place.layer);
  return dynamic_cast<nn::ScaledLayer&>(**module);
}

std::vector<AdaptedPlace> adapted_places(const DecoderImpl& model) {
  std::vector<AdaptedPlace> result;
  for (LoraPlace& place : lora_places(model.config)) {
    for (const nn::ScaledLayer::Product& product : layer_of(model, place).products()) {
      if (product.prefix != place.prefix || product.lora.is_empty()) continue;
      const std::vector<nn::LoraPart>& parts = product.lora->parts;
      std::erase_if(place.modules, [&](const LoraModule& module) {
        return std::find(parts.begin(), parts.end(), module.part) == parts.end();
      });
      result.push_back({std::move(place), product.lora});
      break;
    }
  }
  return result;
}

nn::Lora make_lora(const LoraPlace& place, const nn::LoraOptions& options) {
  std::vector<nn::LoraPart> parts;
  for (const LoraModule& module : place.modules) parts.push_back(module.part);
  return nn::Lora(place.in_features, std::move(parts), options);
}

void expect_no_adapters(const DecoderImpl& model) {
  TORCH_CHECK_VALUE(adapted_places(model).empty(), "lora: expected a model without adapters, got one that has some");
}

void freeze_base(DecoderImpl& model) {
  expect_no_adapters(model);
  for (at::Tensor& parameter : model.parameters()) parameter.set_requires_grad(false);
}

std::vector<AdaptedPlace> needed_adapters(const DecoderImpl& model) {
  std::vector<AdaptedPlace> result = adapted_places(model);
  TORCH_CHECK_VALUE(!result.empty(), "lora: expected a model with adapters, got one without");
  return result;
}

}  // namespace plimsoll::models
