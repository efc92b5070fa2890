#include "plimsoll/serve/json/format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>

#include "plimsoll/serve/json/memory_testing.h"
#include "plimsoll/serve/memory_testing.h"

namespace plimsoll::serve {
namespace {

using nlohmann::ordered_json;

// Every byte, and longer tokens such as vocabularies have: words, what stands between values, halves of characters.
std::vector<std::string> made_up_tokens() {
  std::set<std::string> tokens = {"{\"",      "\": ", "\":", "\",",     "\", \"", "\"}",   "\"]",      "}}",
                                  "]}",       "},{",  "[]",  "[\"",     "true",   "false", "null",     "tru",
                                  "12",       "345",  ".5",  "e-",      "\n  ",   "    ",  "\xC3\xA9", "\xE2\x80",
                                  "\x80\x93", "\\u",  "\\n", "\\ud83d", "\\\"",   "a\"",   "\"a\":",   "\": {\"",
                                  "\": [",    "0,",   "1}",  ", ",      "ab",     "name",  "\"}]",     "\": null"};
  for (int byte = 0; byte < 256; ++byte) tokens.emplace(1, static_cast<char>(byte));
  std::mt19937_64 random(1);
  while (tokens.size() < 900) {
    std::string word = random() % 3 == 0 ? " " : "";
    for (uint64_t letters = 1 + random() % 9; letters > 0; --letters) word += static_cast<char>('a' + random() % 26);
    tokens.insert(std::move(word));
  }
  std::vector<std::string> result = {"", ""};  // special ones
  result.insert(result.end(), tokens.begin(), tokens.end());
  return result;
}

const std::shared_ptr<const TokenTrie>& made_up_trie() {
  static const auto trie = std::make_shared<const TokenTrie>(made_up_tokens());
  return trie;
}

class SchemaMaker {
 public:
  explicit SchemaMaker(uint64_t seed) : random_(seed) {}

  ordered_json whole() {
    ordered_json schema = number(0, 4) == 0 ? value(3) : object(4);
    if (uses_definitions_) {
      schema["$defs"] = {{"leaf", value_without_reference()},
                         {"tree",
                          {{"type", "object"},
                           {"properties",
                            {{"leaf", {{"$ref", "#/$defs/leaf"}}},
                             {"trees", {{"type", "array"}, {"items", {{"$ref", "#/$defs/tree"}}}, {"maxItems", 2}}}}},
                           {"required", {"leaf"}},
                           {"additionalProperties", false}}}};
    }
    return schema;
  }

  int number(int from, int to) { return std::uniform_int_distribution<int>(from, to)(random_); }

 private:
  ordered_json object(int depth) {
    static const std::vector<std::string> names = {"a", "ab", "abc", "name", "", "\"", "caf\u00e9", "a b", "\n", "z"};
    ordered_json result = {{"type", "object"}, {"properties", ordered_json::object()}, {"additionalProperties", false}};
    ordered_json required = ordered_json::array();
    for (int i = number(0, 5); i > 0; --i) {
      const std::string& name = names[static_cast<size_t>(number(0, 9))];
      if (result["properties"].contains(name)) continue;
      result["properties"][name] = value(depth - 1);
      if (number(0, 1) == 0) required.push_back(name);
    }
    if (!required.empty() || number(0, 1) == 0) result["required"] = std::move(required);
    return result;
  }

  ordered_json value(int depth) {
    if (number(0, 9) == 0) {
      uses_definitions_ = true;
      return {{"$ref", number(0, 1) == 0 ? "#/$defs/leaf" : "#/$defs/tree"}};
    }
    if (depth > 0 && number(0, 2) == 0) return object(depth);
    if (depth > 0 && number(0, 3) == 0) {
      ordered_json result = {{"type", "array"}, {"items", value(depth - 1)}};
      if (number(0, 1) == 0) result["minItems"] = number(0, 2);
      if (number(0, 1) == 0) result["maxItems"] = number(2, 4);
      return result;
    }
    if (depth > 0 && number(0, 3) == 0) {
      ordered_json ways = ordered_json::array();
      for (int i = number(1, 3); i > 0; --i) ways.push_back(value(depth - 1));
      return {{"anyOf", std::move(ways)}};
    }
    return value_without_reference();
  }

  ordered_json value_without_reference() {
    switch (number(0, 9)) {
      case 0:
        return {{"type", "string"}};
      case 1:
        return {{"type", "string"}, {"minLength", number(0, 2)}, {"maxLength", number(2, 5)}};
      case 2:
        return {{"type", "integer"}};
      case 3:
        return {{"type", "number"}};
      case 4:
        return {{"type", "boolean"}};
      case 5:
        return {{"type", {"null", "string"}}, {"maxLength", 3}};
      case 6:
        return {{"enum", {"red", "green", "re", 1, 12, nullptr}}};
      case 7:
        return {{"type", "string"}, {"const", "caf\u00e9"}};
      case 8:
        return {{"type", "object"}};
      default:
        return {{"type", "null"}};
    }
  }

  std::mt19937_64 random_;
  bool uses_definitions_ = false;
};

size_t characters_of(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char byte) { return (byte & 0xC0) != 0x80; }));
}

// JSON Schema's rules for the keywords above, of a value by itself.
bool is_valid(const ordered_json& value, const ordered_json& schema, const ordered_json& whole) {
  if (schema.contains("$ref")) {
    const std::string name = schema["$ref"].get<std::string>().substr(std::string("#/$defs/").size());
    return is_valid(value, whole["$defs"][name], whole);
  }
  if (schema.contains("anyOf")) {
    return std::ranges::any_of(schema["anyOf"], [&](const auto& way) { return is_valid(value, way, whole); });
  }
  if (schema.contains("enum") && std::ranges::find(schema["enum"], value) == schema["enum"].end()) return false;
  if (schema.contains("const") && schema["const"] != value) return false;
  if (schema.contains("type")) {
    const ordered_json types = schema["type"].is_array() ? schema["type"] : ordered_json::array({schema["type"]});
    const auto is_of = [&](const ordered_json& type) {
      if (type == "integer") return value.is_number_integer();
      return type == value.type_name();
    };
    if (std::ranges::none_of(types, is_of)) return false;
  }
  if (value.is_string()) {
    const size_t characters = characters_of(value.get<std::string>());
    if (characters < schema.value("minLength", size_t{0}) || characters > schema.value("maxLength", size_t{1} << 40))
      return false;
  }
  if (value.is_array()) {
    if (value.size() < schema.value("minItems", size_t{0}) || value.size() > schema.value("maxItems", size_t{1} << 40))
      return false;
    for (const ordered_json& item : value) {
      if (schema.contains("items") && !is_valid(item, schema["items"], whole)) return false;
    }
  }
  if (value.is_object() && schema.contains("properties")) {
    for (const auto& [name, item] : value.items()) {
      if (!schema["properties"].contains(name) || !is_valid(item, schema["properties"][name], whole)) return false;
    }
    for (const ordered_json& name : schema.value("required", ordered_json::array())) {
      if (!value.contains(name.get<std::string>())) return false;
    }
  }
  return true;
}

TokenMask brute_force(const JsonFormat& format, const JsonState& state) {
  TokenMask mask(static_cast<size_t>(format.tokens().size() + 63) / 64);
  for (int64_t id = 0; id < format.tokens().size(); ++id) {
    if (!format.tokens().bytes(id).empty()) set(mask, id, !format.after(state, id).empty());
  }
  return mask;
}

std::vector<int64_t> ids_of(const TokenMask& mask, int64_t size) {
  std::vector<int64_t> ids;
  for (int64_t id = 0; id < size; ++id) {
    if (is_in(mask, id)) ids.push_back(id);
  }
  return ids;
}

// A text by tokens that are drawn from those allowed, now and then from those that lead to its end: strings and numbers end.
std::string drawn_text(const JsonFormat& format, SchemaMaker& draw, int64_t& compared) {
  std::string text;
  JsonState state = format.start();
  for (int64_t tokens = 0; !JsonMachine::is_ended(state); ++tokens) {
    const auto mask = format.allowed(state);
    if (draw.number(0, 9) == 0) {
      ++compared;
      EXPECT_EQ(*mask, brute_force(format, state)) << text;
    }
    if (JsonMachine::is_complete(state) && draw.number(0, 1) == 0) break;
    std::vector<int64_t> ids = ids_of(*mask, format.tokens().size());
    if (ids.empty()) {
      ADD_FAILURE() << "nothing may follow " << text;
      break;
    }
    const auto shortens = [&](int64_t id) {
      const std::string& bytes = format.tokens().bytes(id);
      return bytes == "\"" || bytes == "}" || bytes == "]" || bytes == ",";
    };
    if (tokens > 20 && std::ranges::any_of(ids, shortens))
      std::erase_if(ids, [&](int64_t id) { return !shortens(id); });
    const int64_t id = ids[static_cast<size_t>(draw.number(0, static_cast<int>(ids.size()) - 1))];
    text += format.tokens().bytes(id);
    state = format.after(std::move(state), id);
    EXPECT_FALSE(state.empty()) << text;
    if (state.empty() || tokens > 20'000) {
      ADD_FAILURE() << "no end of " << text.substr(0, 1000);
      break;
    }
  }
  return text;
}

TEST(JsonFormat, TextsOfAThousandSchemasParseAndAreValid) {
  int64_t compared = 0;
  std::map<std::string, int64_t> kinds;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SchemaMaker maker(seed);
    const ordered_json schema = maker.whole();
    SCOPED_TRACE(schema.dump());
    const JsonFormat format(made_up_trie(), read_json_schema(schema));
    const std::string text = drawn_text(format, maker, compared);
    ASSERT_TRUE(ordered_json::accept(text)) << text;
    const ordered_json value = ordered_json::parse(text);
    ASSERT_TRUE(is_valid(value, schema, schema)) << text;
    ++kinds[value.type_name()];
  }
  EXPECT_GT(compared, 1000) << "masks";
  EXPECT_GE(kinds.size(), 5U);
}

TEST(JsonFormat, TheValidatorOfTheseTestsRefusesWhatIsNotValid) {
  const ordered_json schema = ordered_json::parse(
      R"({"properties": {"a": {"type": "string", "maxLength": 2}, "e": {"minLength": 2}, "b": {"type": "array",
    "items": {"$ref": "#/$defs/c"}, "minItems": 1, "maxItems": 2}, "d": {"anyOf": [{"enum": [1]}, {"const": 2}]}}, "required": ["a"],
    "$defs": {"c": {"type": "integer"}}})");
  for (const char* const good : {R"({"a": "\u00e9x"})", R"({"a": "", "b": [1], "d": 1})", R"({"a": "", "d": 2})"}) {
    EXPECT_TRUE(is_valid(ordered_json::parse(good), schema, schema)) << good;
  }
  for (const char* const bad :
       {"{}", R"({"a": 1})", R"({"a": "abc"})", R"({"a": "", "b": []})", R"({"a": "", "b": [1, 2, 3]})",
        R"({"a": "", "b": [1.5]})", R"({"a": "", "c": 1})", R"({"a": "", "d": 3})", R"({"a": "", "e": "x"})"}) {
    EXPECT_FALSE(is_valid(ordered_json::parse(bad), schema, schema)) << bad;
  }
}

TEST(JsonFormat, AnyObjectsParse) {
  const JsonFormat format(made_up_trie(), json_object_schema());
  int64_t compared = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SchemaMaker draw(seed);
    const std::string text = drawn_text(format, draw, compared);
    ASSERT_TRUE(ordered_json::parse(text).is_object()) << text;
  }
}

TEST(JsonFormat, LongLimitsShareTheirMasks) {
  const JsonFormat format(made_up_trie(), read_json_schema({{"minLength", 50'000}, {"maxLength", 100'000}}));
  const auto& tokens = format.tokens();
  int64_t quote = 0, letter = 0;
  for (int64_t id = 0; id < tokens.size(); ++id) {
    if (tokens.bytes(id) == "\"") quote = id;
    if (tokens.bytes(id) == "x") letter = id;
  }
  JsonState state = format.after(format.start(), quote);
  const auto mask = format.allowed(state);
  for (int i = 0; i < 1000; ++i) state = format.after(std::move(state), letter);
  EXPECT_EQ(format.allowed(state), mask) << "the same object";
}

// A state for each beginning of 1,000 keys, each with many ways in which the brackets before may have been written.
TEST(JsonFormat, StatesBeyondTheMostAreNotKept) {
  constexpr int kLevels = 30, kKeys = 1000, kLetters = 10;
  constexpr size_t kState = kMostFrames * sizeof(JsonFrame), kWhole = size_t{kKeys} * kLetters * kState;
  constexpr size_t kKept = 2 * (size_t{16} << 20),
                   kBytes = 2 * kKept + testing::kStateBytes;  // states and masks; a vector grows by a copy
  static_assert(kBytes < kWhole / 4);
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  std::mt19937_64 random(2);
  ordered_json schema = {{"type", "object"}, {"properties", ordered_json::object()}};
  for (int i = 0; i < kKeys; ++i) {
    std::string key;
    for (int letter = 0; letter < kLetters; ++letter) key += static_cast<char>('a' + random() % 26);
    schema["properties"][key] = {{"type", "null"}};
    tokens.push_back(std::move(key));
  }
  ordered_json definitions = {{"a0", std::move(schema)}};
  for (int i = 1; i <= kLevels; ++i) {
    ordered_json ways = ordered_json::array();
    for (int most = 1; most <= 4; ++most) {
      ways.push_back({{"type", "array"},
                      {"items", {{"$ref", "#/$defs/a" + std::to_string(i - 1)}}},
                      {"minItems", 1},
                      {"maxItems", most}});
    }
    definitions["a" + std::to_string(i)] = {{"anyOf", std::move(ways)}};
  }
  const ordered_json whole = {{"$ref", "#/$defs/a" + std::to_string(kLevels)}, {"$defs", std::move(definitions)}};
  const JsonFormat format(std::make_shared<const TokenTrie>(std::move(tokens)), read_json_schema(whole));
  JsonState state = format.start();
  for (const char byte : std::string(kLevels, '[') + "{\"")
    state = format.after(std::move(state), static_cast<uint8_t>(byte));
  ASSERT_GT(state.size(), 32U);
  testing::expect_within(kBytes, [&] {
    const auto ids = ids_of(*format.allowed(state), format.tokens().size());
    return std::ranges::count_if(ids, [](int64_t id) { return id >= 256; }) == kKeys;
  });
}

TEST(JsonFormat, MemoryThatIsLackingOnceLeavesNoTrace) {
  const auto trie =
      std::make_shared<const TokenTrie>(std::vector<std::string>{"{", "}", "\"", "a", ":", "\"a\":", "1", ","});
  const JsonSchema schema = read_json_schema({{"properties", {{"a", {{"type", "integer"}}}}}, {"required", {"a"}}});
  int64_t before = 0;
  for (bool failed = true; failed; ++before) {
    SCOPED_TRACE(before);
    const JsonFormat format(trie, schema);
    const JsonState state = format.start();
    try {
      const testing::FailingAllocation failing(before);
      format.allowed(state);
    } catch (const std::bad_alloc&) {
    }
    failed = testing::FailingAllocation::has_failed();
    ASSERT_EQ(*format.allowed(state), brute_force(format, state));
    const JsonState inside = format.after(state, 0);
    ASSERT_EQ(*format.allowed(inside), brute_force(format, inside));
  }
  EXPECT_GT(before, 10);
}

TEST(JsonFormat, AnEndThatIsNoTokenIsLeftOut) {
  const JsonFormat format(made_up_trie(), read_json_schema({{"type", "integer"}}));
  const std::vector<std::string> tokens = made_up_tokens();
  const JsonState whole = format.after(format.start(), std::ranges::find(tokens, "1") - tokens.begin());
  ASSERT_TRUE(JsonMachine::is_complete(whole));
  TokenMask expected = *format.allowed(whole);
  set(expected, 1, true);
  EXPECT_EQ(format.allowed(whole, std::vector<int64_t>{-1, 1, std::ssize(tokens), int64_t{1} << 40}), expected);
}

TEST(JsonFormat, TextsThatTheTokensCannotWriteAreRefused) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(byte == 0xC3 ? "" : std::string(1, static_cast<char>(byte)));
  const auto trie = std::make_shared<const TokenTrie>(tokens);
  EXPECT_THROW(JsonFormat(trie, read_json_schema({{"const", "\u00e9"}})), JsonSchemaError);
  const JsonFormat format(trie, read_json_schema({{"type", "string"}}));
  const JsonState inside = format.after(format.start(), '"');
  EXPECT_TRUE(is_in(*format.allowed(inside), 0xC4));
  EXPECT_EQ(*format.allowed(inside), brute_force(format, inside)) << "no character begins that would have no end";
}

TEST(TokenTrie, HasEachTokenAtItsBytes) {
  const TokenTrie trie({"ab", "", "a", "abc", "b", "ab"});
  std::string path;
  std::map<std::string, std::vector<uint32_t>> found;
  for (const TokenTrie::Node& node : trie.nodes()) {
    path.resize(node.depth - size_t{1});
    path.push_back(static_cast<char>(node.byte));
    for (const uint32_t id : trie.ids(node)) found[path].push_back(id);
  }
  EXPECT_EQ(found,
            (std::map<std::string, std::vector<uint32_t>>{{"a", {2}}, {"ab", {0, 5}}, {"abc", {3}}, {"b", {4}}}));
  EXPECT_EQ(trie.nodes()[0].end, 3U);
  EXPECT_EQ(trie.longest(), 3);
  EXPECT_EQ(trie.single_bytes().count(), 2U);
}

}  // namespace
}  // namespace plimsoll::serve
