#include "plimsoll/serve/json/schema.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "plimsoll/serve/json/integer.h"

namespace plimsoll::serve {
namespace {

using nlohmann::ordered_json;
using std::string_view;

constexpr int32_t kMostCount = 1'000'000;  // of items and characters
constexpr size_t kMostAlternatives = 64, kMostNodes = 10'000, kMostBytes = size_t{1} << 17;
constexpr int kDeepestSchema = 128;

// Keywords that say nothing about the value.
constexpr std::array<string_view, 10> kRemarks = {"title", "description", "default", "examples",    "$schema",
                                                  "$id",   "$comment",    "$defs",   "definitions", "deprecated"};

struct Type {
  string_view name;
  std::array<string_view, 3> keywords;  // that may stand beside it
};
constexpr std::array<Type, 7> kTypes = {{{"object", {"properties", "required", "additionalProperties"}},
                                         {"array", {"items", "minItems", "maxItems"}},
                                         {"string", {"minLength", "maxLength"}},
                                         {"integer", {}},
                                         {"number", {}},
                                         {"boolean", {}},
                                         {"null", {}}}};

bool contains(const auto& names, string_view name) { return std::ranges::find(names, name) != names.end(); }

std::string written(const ordered_json& value) { return value.dump(); }

// Part of a JSON pointer in a URI: %XX, then ~1, which is a slash, and ~0, a tilde.
std::string unescaped(std::string part) {
  for (size_t at = 0; (at = part.find('%', at)) != part.npos; ++at) {
    int byte = 0;
    const char* const end = part.data() + std::min(at + 3, part.size());
    if (std::from_chars(part.data() + at + 1, end, byte, 16).ptr == part.data() + at + 3) {
      part.replace(at, 3, 1, static_cast<char>(byte));
    }
  }
  for (size_t at = 0; (at = part.find('~', at)) != part.npos; ++at) {
    if (part.compare(at, 2, "~1") == 0) part.replace(at, 2, "/");
    if (part.compare(at, 2, "~0") == 0) part.replace(at, 2, "~");
  }
  return part;
}

bool is_flag(const ordered_json& value, bool flag) { return value.is_boolean() && value.get<bool>() == flag; }

bool has_type(const ordered_json& value, string_view type) {
  if (type == "integer") return is_integer(value);
  if (type == "number") return value.is_number();
  return type == value.type_name();
}

class Reader {
 public:
  explicit Reader(const ordered_json& whole) : whole_(whole) {}

  JsonSchema read() {
    schema_.string = add({.kind = JsonKind::kString});
    schema_.root = node_of("#", whole_, "schema");
    while (!open_.empty()) {
      const Open next = open_.back();
      open_.pop_back();
      const int32_t target = value_of(*next.schema, next.place, 0);
      schema_.nodes[static_cast<size_t>(next.node)].alternatives = {target};
    }
    flatten_choices();
    find_heights();
    if (schema_.nodes[static_cast<size_t>(schema_.root)].height > kDeepestJson) {
      throw JsonSchemaError("schema", "expected a schema that a value of at most " + std::to_string(kDeepestJson) +
                                          " levels meets, got none");
    }
    return std::move(schema_);
  }

  // Any value, of a schema that says nothing.
  int32_t any_value() {
    if (any_) return *any_;
    any_ = add({});
    const int32_t object = add({.kind = JsonKind::kAnyObject, .element = *any_});
    const int32_t array = add({.kind = JsonKind::kArray, .element = *any_});
    const int32_t number = add({.kind = JsonKind::kNumber});
    const int32_t words = add({.kind = JsonKind::kValues, .values = {"false", "null", "true"}});
    schema_.nodes[static_cast<size_t>(*any_)].alternatives = {object, array, schema_.string, number, words};
    return *any_;
  }

 private:
  struct Open {
    int32_t node;
    const ordered_json* schema;
    std::string place;
  };

  int32_t add(JsonNode node) {
    if (schema_.nodes.size() == kMostNodes) {
      throw JsonSchemaError("schema", "expected at most " + std::to_string(kMostNodes) + " values, got more");
    }
    schema_.nodes.push_back(std::move(node));
    return static_cast<int32_t>(schema_.nodes.size()) - 1;
  }

  // The node that stands for a definition, which is read later.
  int32_t node_of(const std::string& name, const ordered_json& schema, const std::string& place) {
    const auto [found, is_new] = definitions_.try_emplace(name, 0);
    if (is_new) {
      found->second = add({});
      open_.push_back({found->second, &schema, place});
    }
    return found->second;
  }

  int32_t definition(const ordered_json& reference, const std::string& place) {
    if (!reference.is_string()) throw JsonSchemaError(place, "expected a string, got " + written(reference));
    const std::string& name = reference.get_ref<const std::string&>();
    if (name == "#") return node_of(name, whole_, "schema");
    for (const char* const group : {"$defs", "definitions"}) {
      const std::string start = std::string("#/") + group + "/";
      if (!name.starts_with(start) || !whole_.contains(group) || !whole_[group].is_object()) continue;
      for (const std::string& key : {unescaped(name.substr(start.size())), name.substr(start.size())}) {
        const auto found = whole_[group].find(key);
        if (found != whole_[group].end())
          return node_of(start + key, *found, std::string("schema.") + group + "." + key);
      }
    }
    throw JsonSchemaError(place, "expected # or #/$defs/NAME of a definition that is there, got " + written(reference));
  }

  int32_t value_of(const ordered_json& schema, const std::string& place, int depth) {
    if (depth > kDeepestSchema) throw JsonSchemaError(place, "expected a schema of fewer levels");
    if (schema.is_boolean() && schema.get<bool>()) return any_value();
    if (!schema.is_object()) throw JsonSchemaError(place, "expected a schema, an object, got " + written(schema));
    if (schema.contains("$ref")) {
      check_keywords(schema, place, {"$ref"});
      return definition(schema["$ref"], place + ".$ref");
    }
    if (schema.contains("anyOf")) {
      check_keywords(schema, place, {"anyOf"});
      return any_of(schema["anyOf"], place + ".anyOf", depth);
    }
    const std::vector<string_view> types = types_of(schema, place);
    if (schema.contains("enum") || schema.contains("const")) return constants(schema, place, types);
    std::vector<string_view> keywords = {"type"};
    for (const Type& type : kTypes) {
      if (contains(types, type.name)) keywords.insert(keywords.end(), type.keywords.begin(), type.keywords.end());
    }
    check_keywords(schema, place, keywords);
    if (types.empty()) return any_value();
    JsonNode choice;
    for (const string_view type : types) choice.alternatives.push_back(typed(type, schema, place, depth));
    return choice.alternatives.size() == 1 ? choice.alternatives[0] : add(std::move(choice));
  }

  static void check_keywords(const ordered_json& schema, const std::string& place,
                             const std::vector<string_view>& known) {
    for (const auto& [keyword, value] : schema.items()) {
      if (keyword.empty() || (!contains(known, keyword) && !contains(kRemarks, keyword))) {
        throw JsonSchemaError(place + "." + keyword,
                              "expected a keyword of the supported subset of JSON schema, got an unsupported one");
      }
    }
  }

  // Without "type", the one that a keyword tells; none: any value.
  static std::vector<string_view> types_of(const ordered_json& schema, const std::string& place) {
    std::vector<string_view> types;
    const auto found = schema.find("type");
    if (found == schema.end()) {
      if (schema.contains("properties") || schema.contains("required") || schema.contains("additionalProperties")) {
        return {"object"};
      }
      if (schema.contains("items") || schema.contains("minItems") || schema.contains("maxItems")) return {"array"};
      if (schema.contains("minLength") || schema.contains("maxLength")) return {"string"};
      return {};
    }
    for (const ordered_json& type : found->is_array() ? *found : ordered_json::array({*found})) {
      const auto same = [&](const Type& each) { return type.is_string() && type == std::string(each.name); };
      const auto known = std::ranges::find_if(kTypes, same);
      if (known == kTypes.end() || contains(types, known->name)) {
        throw JsonSchemaError(place + ".type", "expected a JSON type, or several, got " + written(*found));
      }
      types.push_back(known->name);
    }
    if (types.empty()) throw JsonSchemaError(place + ".type", "expected a JSON type, or several, got none");
    return types;
  }

  int32_t typed(string_view type, const ordered_json& schema, const std::string& place, int depth) {
    if (type == "object") return object(schema, place, depth);
    if (type == "array") return array(schema, place, depth);
    if (type == "string") {
      if (!schema.contains("minLength") && !schema.contains("maxLength")) return schema_.string;
      return add(counted(JsonKind::kString, schema, place, {"minLength", "maxLength"}));
    }
    if (type == "integer") return add({.kind = JsonKind::kInteger});
    if (type == "number") return add({.kind = JsonKind::kNumber});
    if (type == "boolean") return add({.kind = JsonKind::kValues, .values = {"false", "true"}});
    return add({.kind = JsonKind::kValues, .values = {"null"}});
  }

  static int32_t count(const ordered_json& schema, const char* keyword, const std::string& place, int32_t otherwise) {
    const auto found = schema.find(keyword);
    if (found == schema.end()) return otherwise;
    if (!is_integer(*found) || *found < 0 || *found > kMostCount) {
      throw JsonSchemaError(place + "." + keyword,
                            "expected an integer from 0 to " + std::to_string(kMostCount) + ", got " + written(*found));
    }
    return found->get<int32_t>();
  }

  struct Limits {
    const char *fewest, *most;  // keywords
  };

  static JsonNode counted(JsonKind kind, const ordered_json& schema, const std::string& place, const Limits& limits) {
    JsonNode node{
        .kind = kind, .fewest = count(schema, limits.fewest, place, 0), .most = count(schema, limits.most, place, -1)};
    if (node.most >= 0 && node.fewest > node.most) {
      throw JsonSchemaError(place + "." + limits.most,
                            std::string("expected ") + limits.fewest + " or more, got fewer");
    }
    return node;
  }

  int32_t array(const ordered_json& schema, const std::string& place, int depth) {
    JsonNode node = counted(JsonKind::kArray, schema, place, {"minItems", "maxItems"});
    const auto items = schema.find("items");
    node.element = items == schema.end() ? any_value() : value_of(*items, place + ".items", depth + 1);
    return add(std::move(node));
  }

  int32_t object(const ordered_json& schema, const std::string& place, int depth) {
    const auto properties = schema.find("properties"), required = schema.find("required"),
               more = schema.find("additionalProperties");
    if (properties == schema.end() && required == schema.end() && (more == schema.end() || is_flag(*more, true))) {
      return add({.kind = JsonKind::kAnyObject, .element = any_value()});
    }
    if (more != schema.end() && !is_flag(*more, false)) {
      throw JsonSchemaError(place + ".additionalProperties", "expected false, got " + written(*more));
    }
    JsonNode node{.kind = JsonKind::kObject};
    if (properties != schema.end()) {
      if (!properties->is_object()) {
        throw JsonSchemaError(place + ".properties", "expected an object, got " + written(*properties));
      }
      for (const auto& [name, value] : properties->items()) {
        const int32_t target = value_of(value, place + ".properties." + name, depth + 1);
        node.properties.push_back({.key = written(name), .value = target});
      }
    }
    if (required != schema.end()) {
      if (!required->is_array()) {
        throw JsonSchemaError(place + ".required", "expected an array, got " + written(*required));
      }
      for (const ordered_json& name : *required) {
        const auto found = std::ranges::find(node.properties, written(name), &JsonProperty::key);
        if (found == node.properties.end()) {
          throw JsonSchemaError(place + ".required", "expected names of properties, got " + written(name));
        }
        found->required = true;
      }
    }
    return add(std::move(node));
  }

  int32_t any_of(const ordered_json& schemas, const std::string& place, int depth) {
    if (!schemas.is_array() || schemas.empty() || schemas.size() > kMostAlternatives) {
      throw JsonSchemaError(place, "expected 1 to " + std::to_string(kMostAlternatives) + " schemas, got " +
                                       (schemas.is_array() ? std::to_string(schemas.size()) : written(schemas)));
    }
    JsonNode choice;
    for (size_t i = 0; i < schemas.size(); ++i) {
      choice.alternatives.push_back(value_of(schemas[i], place + "[" + std::to_string(i) + "]", depth + 1));
    }
    return add(std::move(choice));
  }

  int32_t constants(const ordered_json& schema, const std::string& place, const std::vector<string_view>& types) {
    const bool is_enum = schema.contains("enum");
    const char* const keyword = is_enum ? "enum" : "const";
    const std::string name = place + "." + keyword;
    check_keywords(schema, place, {"type", keyword});
    const ordered_json values = is_enum ? schema["enum"] : ordered_json::array({schema["const"]});
    if (!values.is_array() || values.empty()) {
      throw JsonSchemaError(name, "expected an array of values, got " + written(values));
    }
    JsonNode node{.kind = JsonKind::kValues};
    for (const ordered_json& value : values) {
      const auto fits = [&](string_view type) { return has_type(value, type); };
      if (!types.empty() && std::ranges::none_of(types, fits)) {
        throw JsonSchemaError(name, "expected values of the type beside it, got " + written(value));
      }
      node.values.push_back(written(value));
    }
    std::ranges::sort(node.values);
    node.values.erase(std::unique(node.values.begin(), node.values.end()), node.values.end());
    return add(std::move(node));
  }

  // Puts the alternatives of choices among a choice's into their place, each once: 2^N paths may lead to one through N choices.
  // A choice that leads to itself before anything is written would never be made.
  void flatten_choices() {
    enum : uint8_t { kNew, kUnderWay, kDone };
    std::vector<uint8_t> marks(schema_.nodes.size(), kNew);
    std::vector<std::pair<int32_t, size_t>> path;
    for (size_t start = 0; start < marks.size(); ++start) {
      if (marks[start] == kNew) path.emplace_back(static_cast<int32_t>(start), 0);
      while (!path.empty()) {
        auto& [node, next] = path.back();
        const std::vector<int32_t>& alternatives = schema_.nodes[static_cast<size_t>(node)].alternatives;
        marks[static_cast<size_t>(node)] = kUnderWay;
        if (next == alternatives.size()) {
          marks[static_cast<size_t>(node)] = kDone;
          flatten(schema_.nodes[static_cast<size_t>(node)]);
          path.pop_back();
          continue;
        }
        const int32_t target = alternatives[next++];
        if (marks[static_cast<size_t>(target)] == kUnderWay) {
          throw JsonSchemaError("schema", "expected an object or an array between a $ref and itself, got none");
        }
        if (marks[static_cast<size_t>(target)] == kNew) path.emplace_back(target, 0);
      }
    }
  }

  // Choices among its alternatives are flat already.
  void flatten(JsonNode& choice) const {
    std::set<int32_t> flat;
    for (const int32_t each : choice.alternatives) {
      const JsonNode& node = schema_.nodes[static_cast<size_t>(each)];
      if (node.kind != JsonKind::kChoice) flat.insert(each);
      flat.insert(node.alternatives.begin(), node.alternatives.end());
      if (flat.size() > kMostWays) {
        throw JsonSchemaError("schema", "expected at most " + std::to_string(kMostWays) +
                                            " schemas to choose among, with those of choices among them, got more");
      }
    }
    choice.alternatives.assign(flat.begin(), flat.end());
  }

  int32_t height_of(const JsonNode& node) const {
    const auto height = [&](int32_t of) { return schema_.nodes[static_cast<size_t>(of)].height; };
    int32_t inside = 0;
    if (node.kind == JsonKind::kArray && node.fewest > 0) inside = height(node.element);
    for (const JsonProperty& property : node.properties) {
      if (property.required) inside = std::max(inside, height(property.value));
    }
    if (node.kind != JsonKind::kChoice) return std::min(inside, kDeepestJson) + 1;
    int32_t least = kDeepestJson + 1;
    for (const int32_t each : node.alternatives) least = std::min(least, height(each));
    return least;
  }

  void find_heights() {
    for (bool changed = true; changed;) {
      changed = false;
      for (JsonNode& node : schema_.nodes) {
        const int32_t height = height_of(node);
        changed |= height < node.height;
        node.height = height;
      }
    }
  }

  const ordered_json& whole_;
  JsonSchema schema_;
  std::map<std::string, int32_t> definitions_;
  std::vector<Open> open_;  // definitions that are still to be read
  std::optional<int32_t> any_;
};

}  // namespace

JsonSchema read_json_schema(const ordered_json& schema) {
  if (written(schema).size() > kMostBytes) {
    throw JsonSchemaError("schema", "expected at most " + std::to_string(kMostBytes) + " bytes, got more");
  }
  return Reader(schema).read();
}

JsonSchema json_object_schema() { return read_json_schema({{"type", "object"}}); }

}  // namespace plimsoll::serve
