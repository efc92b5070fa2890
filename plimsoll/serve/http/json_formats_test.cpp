#include "plimsoll/serve/http/json_formats.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "plimsoll/serve/http/api_error.h"
#include "plimsoll/tokenize/byte_tokenizer.h"

namespace plimsoll::serve {
namespace {

class JsonFormatsTest : public ::testing::Test {
 protected:
  std::shared_ptr<const JsonFormat> read(const std::string& response_format) {
    const std::string body = R"({"prompt": {"schema": 1}, "response_format": )" + response_format + "}";
    return formats_.read(nlohmann::json::parse(response_format), body);
  }
  // Whether the whole text is one of the format's.
  static bool takes(const JsonFormat& format, const std::string& text) {
    JsonState state = format.start();
    for (const char byte : text) state = format.after(std::move(state), static_cast<uint8_t>(byte));
    return JsonMachine::is_complete(state);
  }

  tokenize::ByteTokenizer tokenizer_;
  JsonFormats formats_{tokenizer_, tokenize::kByteVocabulary};
};

TEST_F(JsonFormatsTest, ASchemaStandsWhereOpenAiOrLlamaCppHasIt) {
  const std::string schema =
      R"({"properties": {"b": {"type": "integer"}, "a": {"type": "null"}}, "required": ["b", "a"]})";
  const auto named = read(R"({"type": "json_schema", "json_schema": {"name": "x", "schema": )" + schema + "}}");
  ASSERT_NE(named, nullptr);
  EXPECT_TRUE(takes(*named, R"({"b":1,"a":null})"));
  EXPECT_FALSE(takes(*named, R"({"a":null,"b":1})")) << "members come in the order of the schema";
  for (const char* const type : {"json_object", "json_schema"}) {
    EXPECT_EQ(read(std::string(R"({"type": ")") + type + R"(", "schema": )" + schema + "}"), named)
        << "the same object";
  }
  const auto string = read(R"({"schema": {"type": "string", "minLength": 1}, "type": "json_object"})");
  EXPECT_TRUE(takes(*string, R"("a")"));
  EXPECT_FALSE(takes(*string, R"("")"));
}

TEST_F(JsonFormatsTest, WithoutASchemaItIsAnyObjectOrAnyText) {
  for (const char* const format : {R"({"type": "json_object"})", R"({"type": "json_object", "schema": null})"}) {
    EXPECT_TRUE(takes(*read(format), R"({"x":[1]})"));
    EXPECT_FALSE(takes(*read(format), "[1]"));
  }
  EXPECT_TRUE(takes(*read(R"({"type": "json_object", "schema": {}})"), "[1]")) << "a schema of any value";
  EXPECT_EQ(read(R"({"type": "text"})"), nullptr);
  EXPECT_EQ(read("null"), nullptr);
}

TEST_F(JsonFormatsTest, WhatIsWrongIsNamed) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"{}", "response_format.type"},
      {R"({"type": "xml"})", "response_format.type"},
      {R"({"type": "text", "schema": {}})", "response_format.schema"},
      {R"({"type": "json_object", "schema": 5})", "response_format.schema"},
      {R"({"type": "json_object", "json_schema": {}})", "response_format.json_schema"},
      {R"({"type": "json_schema"})", "response_format.json_schema"},
      {R"({"type": "json_schema", "schema": {}, "json_schema": {}})", "response_format.json_schema"},
      {R"({"type": "json_schema", "schema": {"pattern": "a"}})", "response_format.schema.pattern"},
      {R"({"type": "json_schema", "json_schema": {"name": "x"}})", "response_format.json_schema.schema"},
      {R"({"type": "json_schema", "json_schema": {"name": "x", "schema": {"pattern": "a"}}})",
       "response_format.json_schema.schema.pattern"},
  };
  for (const auto& [format, name] : wrong) {
    try {
      read(format);
      ADD_FAILURE() << format;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status, 400);
      EXPECT_EQ(error.param, name) << format << ": " << error.what();
    }
  }
}

}  // namespace
}  // namespace plimsoll::serve
