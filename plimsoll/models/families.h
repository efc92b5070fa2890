// The families of decoder-only models, a row each: a new one is a folder beside gpt/ and a row of families.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "plimsoll/models/language_model.h"
#include "plimsoll/models/presets.h"
#include "plimsoll/models/tensors.h"

namespace plimsoll::models {

// A shape is what LanguageModel::shape() says, and what a checkpoint holds.
struct Family {
  std::string_view name;  // the shape's member "family"; without one it is a gpt's
  // Throws std::invalid_argument for sizes that no model has. nullptr: models of the family have no preset, they begin
  // with a config.json.
  nlohmann::json (*shape_of)(const Sizes& sizes);
  // Throws nlohmann::json::exception for a member that is missing or of another type, std::invalid_argument for sizes
  // that no model has, and io::Error unless each parameter of a model of this shape is among the tensors. Called before
  // the model is made, whose size a file may have made up.
  void (*check)(const nlohmann::json& shape, const StoredTensors& tensors);
  // Draws from torch's generator.
  std::shared_ptr<LanguageModel> (*make)(const nlohmann::json& shape);
};

// Throws io::Error that lists the families.
const Family& family_of(const nlohmann::json& shape);

// Weights drawn from `seed`, the same under every recipe.
std::shared_ptr<LanguageModel> make_language_model(const nlohmann::json& shape, int64_t seed);

}  // namespace plimsoll::models
