#include "plimsoll/serve/json/machine.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/serve/json/memory_testing.h"

namespace plimsoll::serve {
namespace {

using nlohmann::ordered_json;

// Memory of nlohmann's values and of the graph of a schema, which has at most 128 KiB and 10,000 nodes.
constexpr size_t kParserBytes =
    (size_t{1} << 17) * sizeof(ordered_json) + 10'000 * (sizeof(JsonNode) + kMostWays * sizeof(int32_t));

JsonMachine machine_of(const std::string& schema) {
  return {read_json_schema(ordered_json::parse(schema)), std::bitset<256>().set()};
}

// Whether the whole text is one of the machine's.
bool takes(const JsonMachine& machine, const std::string& text) {
  JsonState state = machine.start();
  for (const char byte : text) state = machine.next(state, static_cast<uint8_t>(byte));
  return JsonMachine::is_complete(state);
}

void expect_texts(const std::string& schema, const std::vector<std::string>& good,
                  const std::vector<std::string>& bad) {
  SCOPED_TRACE(schema);
  const JsonMachine machine = machine_of(schema);
  for (const std::string& text : good) EXPECT_TRUE(takes(machine, text)) << text;
  for (const std::string& text : bad) EXPECT_FALSE(takes(machine, text)) << text;
}

// Calls test(text) for every text of up to `longest` of these characters.
void for_each_text(const std::string& characters, size_t longest, const std::function<void(const std::string&)>& test) {
  std::string text;
  const std::function<void()> extend = [&] {
    test(text);
    if (text.size() == longest) return;
    for (const char character : characters) {
      text.push_back(character);
      extend();
      text.pop_back();
    }
  };
  extend();
}

TEST(JsonMachine, NumbersAreThoseOfTheParser) {
  const JsonMachine number = machine_of(R"({"type": "number"})"), integer = machine_of(R"({"type": "integer"})");
  int64_t numbers = 0;
  for_each_text("-+.eE019", 4, [&](const std::string& text) {
    const bool is_number = ordered_json::accept(text);
    numbers += is_number;
    ASSERT_EQ(takes(number, text), is_number) << text;
    ASSERT_EQ(takes(integer, text), is_number && ordered_json::parse(text).is_number_integer()) << text;
  });
  EXPECT_GT(numbers, 100);
}

TEST(JsonMachine, NumbersFitIntoTheirTypes) {
  const std::string digits(18, '9');
  expect_texts(R"({"type": "number"})", {digits, "-" + digits + "." + digits + "e99", "1E-99"},
               {digits + "9", "1." + digits + "9", "1e100"});
  expect_texts(R"({"type": "integer"})", {digits, "-" + digits}, {digits + "9", "1.0", "1e2"});
  EXPECT_TRUE(ordered_json::accept(digits + "e99"));
}

TEST(JsonMachine, StringsAreThoseOfTheParser) {
  const JsonMachine string = machine_of(R"({"type": "string"})");
  EXPECT_FALSE(takes(string, std::string("\"\0\"", 3)));
  const auto expect_same = [&](const std::string& inside) {
    if (inside.find('\0') != inside.npos) return;  // which ends a text for the parser
    const std::string text = '"' + inside + '"';
    ASSERT_EQ(takes(string, text), ordered_json::accept(text))
        << ordered_json(text).dump(-1, ' ', true, ordered_json::error_handler_t::replace);
  };
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) expect_same({static_cast<char>(first), static_cast<char>(second)});
  }
  // Bytes at which the ranges of longer encodings begin and end.
  for_each_text("\x7F\x80\x8F\x90\x9F\xA0\xBF\xC2\xE0\xE1\xED\xEE\xF0\xF1\xF4\xF5", 4, expect_same);
  for_each_text("\\ubn\"d", 5, expect_same);
  std::mt19937_64 random(3);
  const std::string digits = "0123456789abcdefABCDEF";
  int64_t pairs = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string escapes;
    for (int escape = 0; escape < 2; ++escape) {
      escapes += random() % 20 == 0 ? "\\n" : "\\u";
      escapes += random() % 4 == 0 ? '0' : 'd';
      for (int digit = 0; digit < 3; ++digit) escapes += digits[random() % digits.size()];
    }
    pairs += ordered_json::accept('"' + escapes + '"');
    expect_same(escapes);
  }
  EXPECT_GT(pairs, 1000);
}

TEST(JsonMachine, AnyObjectIsWhatTheParserTakesButForMuchSpace) {
  const JsonMachine object{json_object_schema(), std::bitset<256>().set()};
  for_each_text("{}[],:\"1 ", 6, [&](const std::string& inside) {
    const std::string text = "{" + inside + "}";
    // No space stands between a key and its colon, or behind the text.
    if (text.find("\" :") != text.npos || text.find("\"  ") != text.npos) return;
    ASSERT_EQ(takes(object, text), ordered_json::accept(text)) << text;
  });
  EXPECT_TRUE(takes(object, R"({"a": {"b": [1, -2.5e3, "x", true, false, null, {}], "": []}, "a": 1})"));
  EXPECT_TRUE(takes(object, "{\n  \"a\": 1,\n  \"b\": [\n    2\n  ]\n}"));
  EXPECT_FALSE(takes(object, "[1]"));
  EXPECT_FALSE(takes(object, "{} ")) << "nothing follows the text";
  EXPECT_FALSE(takes(object, "{" + std::string(21, ' ') + "}"));
  for (const int depth : {kDeepestJson, kDeepestJson + 1}) {
    std::string text = "{\"\":" + std::string(static_cast<size_t>(depth) - 1, '[') +
                       std::string(static_cast<size_t>(depth) - 1, ']') + "}";
    EXPECT_EQ(takes(object, text), depth == kDeepestJson) << depth;
  }
}

TEST(JsonMachine, ObjectsHaveTheirPropertiesInOrder) {
  expect_texts(
      R"({"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "null"}, "ab": {"type": "boolean"}},
                   "required": ["a"], "additionalProperties": false})",
      {R"({"a":null})", R"({"b":1,"a":null})", R"({"b": 1, "a": null, "ab": true})", R"({"a":null,"ab":false})"},
      {"{}", R"({"b":1})", R"({"a":null,"b":1})", R"({"a":1})", R"({"a":null,"c":1})", R"({"a":null,"a":null})",
       R"({"a":null,})", R"({"a":null)", R"({,"a":null})", R"({"b":1,,"a":null})", R"({"ab":true,"a":null})"});
  expect_texts(R"({"properties": {}})", {"{}", "{ }"}, {R"({"a":1})"});
  expect_texts(R"({"properties": {"\"\u00e9": true}, "required": ["\"\u00e9"]})", {R"({"\"é":[]})"},
               {R"({"\"\u00e9":[]})"});
}

TEST(JsonMachine, ArraysHaveAsManyItemsAsTheyMay) {
  expect_texts(R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
               {"[1]", "[1,2]", "[ 1, 2 ,3 ]"}, {"[]", "[1,2,3,4]", "[1,]", "[,1]", "[1", "[\"a\"]"});
  expect_texts(R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"});
  expect_texts(R"({"type": "array"})", {"[]", R"([1,"a",[null]])"}, {"[1,]"});
}

TEST(JsonMachine, StringsHaveAsManyCharactersAsTheyMay) {
  expect_texts(
      R"({"type": "string", "maxLength": 2})",
      {R"("")", R"("ab")", R"("éü")", R"("\n\u00e9")", R"("\ud83d\ude00a")", "\"\xF0\x9F\x98\x80\xF0\x9F\x98\x80\""},
      {R"("abc")", R"("\ud83d\ude00ab")", R"("\ud83dab")"});
  expect_texts(R"({"type": "string", "minLength": 2, "maxLength": 3})", {R"("ab")", R"("éüa")", R"("\n\u00e9")"},
               {R"("")", R"("a")", R"("é")", R"("\ud83d\ude00")", R"("abcd")"});
  expect_texts(R"({"type": "string", "minLength": 2.0, "maxLength": 2e0})", {R"("ab")"}, {R"("a")", R"("abc")"});
  expect_texts(R"({"minLength": 1})", {R"("a")", R"("a longer one")"}, {R"("")", "1"});
  expect_texts(R"({"type": "string", "minLength": 1, "maxLength": 1})", {R"("a")"}, {R"("")", R"("ab")"});
}

TEST(JsonMachine, ConstantsAreWrittenAsTheyAre) {
  expect_texts(R"({"enum": ["a", "ab", 1, 12, -1, null, true, {"x": [1]}, 12.5]})",
               {R"("a")", R"("ab")", "1", "12", "-1", "null", "true", R"({"x":[1]})", "12.5"},
               {R"("b")", R"("abc")", "2", "123", "-", "nul", R"({"x": [1]})", "12."});
  expect_texts(R"({"type": "string", "const": "one"})", {R"("one")"}, {R"("on")", "one"});
  expect_texts(R"({"type": ["integer", "null"]})", {"1", "null"}, {"true", "1.5"});
}

TEST(JsonMachine, EachWayOfAChoiceIsOpenUntilItIsRuledOut) {
  expect_texts(
      R"({"anyOf": [{"properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["kind", "x"]},
                             {"properties": {"kind": {"enum": ["a", "b"]}, "y": {"type": "null"}}, "required": ["kind", "y"]},
                             {"type": "number"}, {"type": "integer"}]})",
      {R"({"kind":"a","x":1})", R"({"kind":"a","y":null})", R"({"kind":"b","y":null})", "1", "1.5"},
      {R"({"kind":"b","x":1})", R"({"kind":"a","x":null})", R"({"kind":"a"})", "true"});
}

// Definitions a0 to aN, each a choice between the one before and itself, by `ways` references: ways^N paths lead to a0.
ordered_json doubling(int count, int ways, const std::function<ordered_json(ordered_json)>& wrap) {
  ordered_json definitions = {{"a0", {{"type", "null"}}}};
  const auto reference = [](int i) { return ordered_json{{"$ref", "#/$defs/a" + std::to_string(i)}}; };
  for (int i = 1; i <= count; ++i) {
    ordered_json alternatives = ordered_json::array();
    for (int way = 0; way < ways; ++way) alternatives.push_back(wrap(reference(i - 1)));
    definitions["a" + std::to_string(i)] = {{"anyOf", std::move(alternatives)}};
  }
  ordered_json schema = reference(count);
  schema["$defs"] = std::move(definitions);
  return schema;
}

TEST(JsonMachine, AChoiceThatManyPathsLeadToIsEnteredOnce) {
  const auto same = [](ordered_json reference) { return reference; };
  for (const auto& [count, ways] : {std::pair(40, 2), std::pair(40, 64), std::pair(1500, 2)}) {
    testing::expect_within(kParserBytes + testing::kStateBytes, [&, count = count, ways = ways] {
      const JsonMachine machine{read_json_schema(doubling(count, ways, same)), std::bitset<256>().set()};
      return machine.start().size() == 1 && takes(machine, "null") && !takes(machine, "1");
    });
  }
}

// Each level is an array by two schemas: 2^60 ways to have written its brackets.
TEST(JsonMachine, WaysBeyondTheMostAreNotFollowed) {
  constexpr int kLevels = 60;
  testing::expect_within(kParserBytes + 2 * testing::kStateBytes, [] {
    int most = 0;
    const auto in_array = [&](ordered_json reference) {
      return ordered_json{{"type", "array"}, {"items", std::move(reference)}, {"maxItems", 2 + most++ % 2}};
    };
    const JsonMachine machine{read_json_schema(doubling(kLevels, 2, in_array)), std::bitset<256>().set()};
    JsonState state = machine.start();
    const auto write = [&](const std::string& text) {
      for (const char byte : text) state = machine.next(state, static_cast<uint8_t>(byte));
      size_t frames = 0;
      for (const JsonStack& stack : state) frames += stack.size();
      return !state.empty() && state.size() <= kMostStacks && frames <= kMostFrames;
    };
    bool good = true;
    for (int i = 0; i < kLevels; ++i) good = good && write("[");
    good = good && write("null") && write(std::string(kLevels, ']'));
    return good && JsonMachine::is_ended(state);
  });
}

TEST(JsonSchema, ChoicesOfMoreWaysThanAreFollowedAreRefused) {
  const auto strings = [](size_t groups, size_t each) {
    ordered_json whole = ordered_json::array();
    for (size_t i = 0; i < groups; ++i) {
      ordered_json group = ordered_json::array();
      for (size_t j = 0; j < each; ++j) group.push_back({{"type", "string"}, {"maxLength", i * each + j}});
      whole.push_back({{"anyOf", std::move(group)}});
    }
    return ordered_json{{"anyOf", std::move(whole)}};
  };
  static_assert(kMostWays % 64 == 0);
  EXPECT_EQ(JsonMachine(read_json_schema(strings(kMostWays / 64, 64)), std::bitset<256>().set()).start().size(),
            kMostWays);
  EXPECT_THROW(read_json_schema(strings(kMostWays / 64 + 1, 64)), JsonSchemaError);
  EXPECT_THROW(read_json_schema(strings(64, 64)), JsonSchemaError);
}

TEST(JsonMachine, DefinitionsMayHoldThemselves) {
  expect_texts(
      R"({"$ref": "#/$defs/node", "$defs": {"node": {"properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                   "required": ["next"]}}})",
      {R"({"next":null})", R"({"next":{"next":{"next":null}}})"}, {"{}", R"({"next":{}})"});
  expect_texts(R"({"type": "array", "items": {"$ref": "#"}})", {"[]", "[[],[[]]]"}, {"[1]"});
  const JsonMachine list = machine_of(R"({"type": "array", "items": {"$ref": "#"}, "description": "lists of lists"})");
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_TRUE(takes(list, nested(kDeepestJson)));
  EXPECT_FALSE(takes(list, nested(kDeepestJson + 1)));
}

TEST(JsonSchema, ReferencesAreJsonPointersInUris) {
  for (const auto& [name, reference] :
       {std::pair("a/b", "a~1b"), std::pair("a/b", "a/b"), std::pair("a b", "a%20b"), std::pair("a b", "a b"),
        std::pair("~1", "~01"), std::pair("~/", "%7e0%7E1"), std::pair("\u00e9", "%C3%A9"), std::pair("100%", "100%"),
        std::pair("%2", "%2"), std::pair("%-1", "%-1"), std::pair("~2", "~2"), std::pair("~", "~")}) {
    const ordered_json schema = {{"$ref", std::string("#/$defs/") + reference},
                                 {"$defs", {{name, {{"type", "null"}}}}}};
    EXPECT_EQ(read_json_schema(schema).nodes.size(), 4U)
        << reference << ": any string, the reference, the definition and its null";
  }
  EXPECT_THROW(read_json_schema({{"$ref", "#/$defs/a~1b"}, {"$defs", {{"a~b", {{"type", "null"}}}}}}), JsonSchemaError);
}

TEST(JsonSchema, WhatIsNotSupportedIsNamed) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {R"({"type": "string", "pattern": "a*"})", "schema.pattern"},
      {R"({"type": "string", "minLength": -1})", "schema.minLength"},
      {R"({"type": "string", "minLength": 1.5})", "schema.minLength"},
      {R"({"type": "string", "minLength": 1e300})", "schema.minLength"},
      {R"({"type": "string", "minLength": 3, "maxLength": 2})", "schema.maxLength"},
      {R"({"type": "array", "minLength": 1})", "schema.minLength"},
      {R"({"type": "integer", "minimum": 1})", "schema.minimum"},
      {R"({"type": "string", "maxItems": 1})", "schema.maxItems"},
      {R"({"type": "string", "maxLength": -1})", "schema.maxLength"},
      {R"({"type": "string", "maxLength": 1.5})", "schema.maxLength"},
      {R"({"type": "array", "minItems": 3, "maxItems": 2})", "schema.maxItems"},
      {R"({"type": "array", "items": 5})", "schema.items"},
      {R"({"type": "text"})", "schema.type"},
      {R"({"type": []})", "schema.type"},
      {R"({"type": ["string", "string"]})", "schema.type"},
      {R"({"type": 5})", "schema.type"},
      {R"({"oneOf": []})", "schema.oneOf"},
      {R"({"anyOf": []})", "schema.anyOf"},
      {R"({"anyOf": [{"type": "null"}, {"not": {}}]})", "schema.anyOf[1].not"},
      {R"({"anyOf": [true], "type": "null"})", "schema.type"},
      {R"({"enum": []})", "schema.enum"},
      {R"({"enum": [1, "a"], "type": "string"})", "schema.enum"},
      {R"({"const": 1, "enum": [1]})", "schema.const"},
      {R"({"properties": {"a": {"format": "date"}}})", "schema.properties.a.format"},
      {R"({"properties": 1})", "schema.properties"},
      {R"({"properties": {}, "required": ["a"]})", "schema.required"},
      {R"({"properties": {}, "required": "a"})", "schema.required"},
      {R"({"properties": {}, "additionalProperties": true})", "schema.additionalProperties"},
      {R"({"type": "object", "additionalProperties": {"type": "null"}})", "schema.additionalProperties"},
      {R"({"$ref": "#/$defs/a"})", "schema.$ref"},
      {R"({"$ref": 1})", "schema.$ref"},
      {R"({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null", "x": 1}}})", "schema.$defs.a.x"},
      {R"({"$ref": "#"})", "schema"},
      {R"({"anyOf": [{"type": "null"}, {"$ref": "#"}]})", "schema"},
      {R"({"properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "schema"},
      {R"("text")", "schema"},
      {"false", "schema"},
  };
  for (const auto& [schema, place] : wrong) {
    try {
      read_json_schema(ordered_json::parse(schema));
      ADD_FAILURE() << schema;
    } catch (const JsonSchemaError& error) {
      EXPECT_EQ(error.place, place) << schema << ": " << error.what();
    }
  }
  ordered_json deep = {{"type", "null"}};
  for (int i = 0; i < 1000; ++i) deep = {{"type", "array"}, {"items", std::move(deep)}};
  EXPECT_THROW(read_json_schema(deep), JsonSchemaError);
  ordered_json large = {{"enum", {std::string(1 << 18, 'a')}}};
  EXPECT_THROW(read_json_schema(large), JsonSchemaError);
}

}  // namespace
}  // namespace plimsoll::serve
