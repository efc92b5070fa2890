#include "plimsoll/app/model_shape.h"

#include <array>
#include <string>

#include "plimsoll/app/error.h"
#include "plimsoll/recipe/names.h"

namespace plimsoll::app {
namespace {

struct NamedShape {
  std::string_view name;
  ModelShape shape;
};
constexpr std::array<NamedShape, 3> kModels = {{
    {"tiny", {.layers = 4, .dim = 256, .heads = 4, .context = 128}},     // 3.3 million parameters
    {"small", {.layers = 6, .dim = 384, .heads = 6, .context = 256}},    // 10.8 million
    {"gpt2", {.layers = 12, .dim = 768, .heads = 12, .context = 1024}},  // 86 million
}};

}  // namespace

const std::vector<std::string_view>& model_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> list;
    for (const NamedShape& model : kModels) list.push_back(model.name);
    return list;
  }();
  return names;
}

ModelShape model_by_name(std::string_view name) {
  for (const NamedShape& model : kModels) {
    if (model.name == name) return model.shape;
  }
  throw UsageError(recipe::unknown_name("model", name, model_names()));
}

void check_shape(const ModelShape& shape) {
  if (shape.layers < 1 || shape.dim < 1 || shape.heads < 1 || shape.context < 1) {
    refuse("model: expected positive sizes, got {} layers, dim {}, {} heads, context {}", shape.layers, shape.dim,
           shape.heads, shape.context);
  }
  if (shape.dim % shape.heads != 0) {
    refuse("model: expected heads that divide dim {}, got {} heads", shape.dim, shape.heads);
  }
}

void to_json(nlohmann::json& json, const ModelShape& shape) {
  json = {{"layers", shape.layers}, {"dim", shape.dim}, {"heads", shape.heads}, {"context", shape.context}};
  constexpr ModelShape kUsual;
  if (shape.rms_norm) json["rms_norm"] = true;
  if (shape.norm_epsilon != kUsual.norm_epsilon) json["norm_epsilon"] = shape.norm_epsilon;
  if (!shape.own_head) json["own_head"] = false;
}

void from_json(const nlohmann::json& json, ModelShape& shape) {
  shape = {.layers = json.at("layers").get<int64_t>(),
           .dim = json.at("dim").get<int64_t>(),
           .heads = json.at("heads").get<int64_t>(),
           .context = json.at("context").get<int64_t>(),
           .rms_norm = json.value("rms_norm", false),
           .norm_epsilon = json.value("norm_epsilon", ModelShape().norm_epsilon),
           .own_head = json.value("own_head", true)};
}

}  // namespace plimsoll::app
