#include "plimsoll/cli/json_option.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "plimsoll/app/error.h"
#include "plimsoll/io/regular_file.h"
#include "plimsoll/serve/http/json_formats.h"

namespace plimsoll::cli {
namespace {

using nlohmann::ordered_json;

constexpr uint64_t kMostBytes = 4 << 20;  // as of a request to the server

class JsonText final : public app::TextFormat {
 public:
  JsonText(std::shared_ptr<const serve::JsonFormat> format, std::vector<int64_t> ends)
      : format_(std::move(format)), ends_(std::move(ends)) {}

  void begin() override { state_ = format_->start(); }
  std::vector<uint64_t> allowed() const override { return format_->allowed(state_, ends_); }
  bool add(int64_t token) override {
    state_ = format_->after(std::move(state_), token);
    return serve::JsonMachine::is_ended(state_);
  }

 private:
  const std::shared_ptr<const serve::JsonFormat> format_;
  const std::vector<int64_t> ends_;
  serve::JsonState state_;
};

// The members in their order, which is that of the text.
ordered_json read_schema(const std::filesystem::path& file) {
  try {
    return ordered_json::parse(io::read_file(file, kMostBytes));
  } catch (const nlohmann::json::exception& error) {
    io::fail("{}: expected a schema in JSON, got what is none: {}", file.native(), std::string(error.what()));
  }
}

}  // namespace

Option json_object_option(JsonTexts& texts) {
  return {"json-object", "", toggle(texts.objects),
          "write JSON, an object of any members, as the server's response_format"};
}

Option json_schema_option(JsonTexts& texts) {
  return {"json-schema", "FILE", path(texts.schema, PathMust::kExist),
          "write JSON of the JSON schema in this file, as the server's response_format"};
}

std::shared_ptr<app::TextFormat> format_of(const JsonTexts& texts, const app::TextModel& model) {
  if (!texts.objects && texts.schema.empty()) return nullptr;
  if (texts.objects && !texts.schema.empty())
    app::refuse("--json-schema: expected no --json-object beside it, got both");
  const ordered_json schema = texts.objects ? ordered_json{{"type", "object"}} : read_schema(texts.schema);
  serve::JsonFormats formats(*model.tokenizer, app::vocabulary_of(*model.model));
  try {
    return std::make_shared<JsonText>(formats.of(schema), model.ends);
  } catch (const serve::JsonSchemaError& error) {
    io::fail("{}: {}: {}", texts.schema.native(), error.place, std::string(error.what()));
  }
}

}  // namespace plimsoll::cli
