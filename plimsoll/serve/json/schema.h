// JSON Schema as a graph of values, of the subset that docs/serve.md describes.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace plimsoll::serve {

inline constexpr int32_t kDeepestJson = 64;  // frames of a JsonStack: objects and arrays that are open, and a value
inline constexpr size_t kMostWays = 256;     // alternatives of a choice, with those of the choices among them

// A keyword that is not supported, or a wrong value of one. place: where it stands in the schema.
struct JsonSchemaError : std::runtime_error {
  JsonSchemaError(std::string where, const std::string& what) : std::runtime_error(what), place(std::move(where)) {}
  std::string place;
};

struct JsonProperty {
  std::string key;  // as it is written, quotes and all
  int32_t value = 0;
  bool required = false;
};

enum class JsonKind : uint8_t {
  kValues,  // one of `values`
  kString,  // of `fewest` to `most` characters
  kNumber,
  kInteger,
  kArray,      // `fewest` to `most` times `element`
  kObject,     // `properties`, in their order
  kAnyObject,  // any keys, each with `element`
  kChoice,     // one of `alternatives`, which are no choices and distinct
};

struct JsonNode {
  JsonKind kind = JsonKind::kChoice;
  std::vector<std::string> values = {};  // as they are written; sorted, distinct
  int32_t fewest = 0, most = -1;         // -1: any number
  int32_t element = 0;
  std::vector<JsonProperty> properties = {};
  std::vector<int32_t> alternatives = {};
  int32_t height = kDeepestJson + 1;  // frames that its flattest value takes
};

struct JsonSchema {
  std::vector<JsonNode> nodes;
  int32_t root = 0;
  int32_t string = 0;  // any string
};

// Throws JsonSchemaError.
JsonSchema read_json_schema(const nlohmann::ordered_json& schema);
// Any object.
JsonSchema json_object_schema();

}  // namespace plimsoll::serve
