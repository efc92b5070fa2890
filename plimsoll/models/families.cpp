#include "plimsoll/models/families.h"

#include <ATen/Context.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plimsoll/io/error.h"
#include "plimsoll/models/decoder/family.h"
#include "plimsoll/models/gpt/family.h"
#include "plimsoll/recipe/names.h"

namespace plimsoll::models {
namespace {

constexpr std::array<Family, 2> kFamilies = {{
    {"gpt", gpt_shape_of, check_gpt, make_gpt},
    {"decoder", nullptr, check_decoder, make_decoder},
}};

constexpr const Family* kGpt = &kFamilies[0];
constexpr std::array<recipe::Named<Preset>, 3> kPresets = {{
    {"tiny", {kGpt, {.layers = 4, .dim = 256, .heads = 4, .context = 128}}},     // 3.3 million parameters
    {"small", {kGpt, {.layers = 6, .dim = 384, .heads = 6, .context = 256}}},    // 10.8 million
    {"gpt2", {kGpt, {.layers = 12, .dim = 768, .heads = 12, .context = 1024}}},  // 86 million
}};

}  // namespace

const Family& family_of(const nlohmann::json& shape) {
  const std::string name = shape.value("family", std::string(kGpt->name));
  std::vector<std::string_view> known;
  for (const Family& family : kFamilies) {
    if (family.name == name) return family;
    known.push_back(family.name);
  }
  throw io::Error(recipe::unknown_name("checkpoint: family", name, known));
}

std::shared_ptr<LanguageModel> make_language_model(const nlohmann::json& shape, int64_t seed) {
  at::manual_seed(static_cast<uint64_t>(seed));
  return family_of(shape).make(shape);
}

std::span<const recipe::Named<Preset>> presets() { return kPresets; }

}  // namespace plimsoll::models
