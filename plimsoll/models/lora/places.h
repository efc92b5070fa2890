// The linear layers of a decoder's blocks as LoRA sees them: products of ours, and the modules of Hugging Face's files
// that are their rows.
#pragma once

#include <string>
#include <vector>

#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/decoder/tensors.h"
#include "plimsoll/nn/lora.h"

namespace plimsoll::models {

struct LoraModule {
  std::string name;  // "model.layers.0.self_attn.q_proj"
  nn::LoraPart part;
};

struct LoraPlace {
  std::string layer;   // path of the nn layer
  std::string prefix;  // of its product: "", "fc1", "fc2"
  int64_t in_features;
  StoredOrder order;  // of the rows of the weight, and so of B
  std::vector<LoraModule> modules;

  std::string parameter() const { return layer + "." + (prefix.empty() ? prefix : prefix + "_") + "weight"; }
};

// All that take adapters.
std::vector<LoraPlace> lora_places(const DecoderConfig& config);

// Throws c10::ValueError for a model of another kind.
DecoderImpl& lora_decoder(LanguageModel& model);
const DecoderImpl& lora_decoder(const LanguageModel& model);

nn::ScaledLayer& layer_of(const torch::nn::Module& model, const LoraPlace& place);

// A place with the adapters that the model has there; `modules` are those with one, in the order of the adapters.
struct AdaptedPlace {
  LoraPlace place;
  nn::Lora lora;
};
std::vector<AdaptedPlace> adapted_places(const DecoderImpl& model);
// Throws c10::ValueError if there is none.
std::vector<AdaptedPlace> needed_adapters(const DecoderImpl& model);

// Adapters of the modules of a place, which no layer has yet.
nn::Lora make_lora(const LoraPlace& place, const nn::LoraOptions& options);

// Throws c10::ValueError if the model has adapters.
void expect_no_adapters(const DecoderImpl& model);
// No parameter requires a gradient any more. Throws c10::ValueError if the model has adapters.
void freeze_base(DecoderImpl& model);

}  // namespace plimsoll::models
