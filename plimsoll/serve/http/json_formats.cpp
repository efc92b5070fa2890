#include "plimsoll/serve/http/json_formats.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "plimsoll/serve/http/api_error.h"
#include "plimsoll/serve/http/body.h"

namespace plimsoll::serve {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMostRecent = 8;
constexpr int kMostKeys = 5000;  // of a schema: ordered_json looks through them all for each
// Values of a schema, whose parser looks through all elements of an array for each object in it.
constexpr int kMostSchemaValues = 20'000;

// The places of a schema in a body: OpenAI's, and llama.cpp's, beside the type.
const std::string kNamed = "response_format.json_schema.", kBesideType = "response_format.";

// The schema with its members in their order, which nlohmann::json does not keep. Other fields of the body are passed over.
ordered_json ordered_schema(std::string_view body, const std::string& place) {
  int keys = 0, values = 0;
  bool is_here = false;
  const auto keeps = [&](int depth, ordered_json::parse_event_t event, const ordered_json& parsed) {
    using Event = ordered_json::parse_event_t;
    const bool is_value = event == Event::value || event == Event::object_start || event == Event::array_start;
    if (is_here && is_value && ++values > kMostSchemaValues) {
      refuse_field(place + "schema", "expected at most {} values, got more", kMostSchemaValues);
    }
    if (event != Event::key) return true;
    if (depth == 1) is_here = parsed == "response_format";
    if (is_here && ++keys > kMostKeys) {
      refuse_field(place + "schema", "expected at most {} names, got more", kMostKeys);
    }
    return is_here;
  };
  try {
    const ordered_json field = ordered_json::parse(body, keeps).at("response_format");
    return (place == kNamed ? field.at("json_schema") : field).at("schema");
  } catch (const nlohmann::json::exception& error) {
    refuse_field("response_format", "expected a schema, got another value: {}", std::string(error.what()));
  }
}

}  // namespace

std::shared_ptr<const JsonFormat> JsonFormats::read(nlohmann::json field, std::string_view body) {
  if (field.is_null()) return nullptr;
  Body format(std::move(field), kBesideType);
  const std::optional<std::string> type = format.text("type");
  if (type != "text" && type != "json_object" && type != "json_schema") {
    refuse_field("response_format.type", "expected text, json_object or json_schema, got {}", type.value_or("none"));
  }
  std::optional<std::string> place;  // of the schema, if there is one
  if (type != "text" && !format.take("schema").is_null()) {
    place = kBesideType;
  } else if (type == "json_schema") {
    place = kNamed;
    Body named(format.take("json_schema"), kNamed);
    if (!named.text("name")) refuse_field(kNamed + "name", "expected a string, got none");
    named.text("description");
    named.flag("strict");  // a schema is always kept to
    if (named.take("schema").is_null()) refuse_field(kNamed + "schema", "expected an object, got none");
    named.expect_no_more();
  }
  format.expect_no_more();
  if (type == "text") return nullptr;
  if (!place) return of({{"type", "object"}});
  const ordered_json schema = ordered_schema(body, *place);
  try {
    return of(schema);
  } catch (const JsonSchemaError& error) {
    refuse_field(*place + error.place.substr(0, 200), "{}", std::string(error.what()));
  }
}

std::shared_ptr<const TokenTrie> JsonFormats::tokens() {
  if (tokens_ != nullptr) return tokens_;
  std::vector<std::string> tokens(static_cast<size_t>(vocabulary_));
  for (int64_t id = 0; id < std::min(vocabulary_, tokenizer_.size()); ++id) {
    tokens[static_cast<size_t>(id)] = tokenizer_.bytes_of(id);
  }
  if (std::ranges::all_of(tokens, &std::string::empty)) {
    refuse_field("response_format",
                 "expected none, or text: the model's tokenizer does not say which bytes a token adds");
  }
  tokens_ = std::make_shared<const TokenTrie>(std::move(tokens));
  return tokens_;
}

std::shared_ptr<const JsonFormat> JsonFormats::of(const ordered_json& schema) {
  std::string text = schema.dump();
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found =
      std::ranges::find(recent_, text, [](const auto& each) -> const std::string& { return each.first; });
  if (found != recent_.end()) {
    recent_.splice(recent_.begin(), recent_, found);
    return recent_.front().second;
  }
  auto format = std::make_shared<const JsonFormat>(tokens(), read_json_schema(schema));
  recent_.emplace_front(std::move(text), std::move(format));
  if (recent_.size() > kMostRecent) recent_.pop_back();
  return recent_.front().second;
}

}  // namespace plimsoll::serve
