#include "plimsoll/serve/http/body.h"

#include <utility>

#include "plimsoll/serve/http/api_error.h"
#include "plimsoll/serve/json/integer.h"

namespace plimsoll::serve {
namespace {

constexpr int kDeepest = 1000;            // levels of a body
constexpr int64_t kMostParts = 100'000;   // objects, arrays and names, each of which takes 70 bytes of memory or more
constexpr int64_t kMostValues = 300'000;  // numbers, strings and others, 16 bytes or more each

// Counts the parts of a body before it takes memory. nlohmann's parser with a callback looks through all elements of an
// array for each object in it.
class PartCounter final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return add_value(); }
  bool boolean(bool) override { return add_value(); }
  bool number_integer(number_integer_t) override { return add_value(); }
  bool number_unsigned(number_unsigned_t) override { return add_value(); }
  bool number_float(number_float_t, const string_t&) override { return add_value(); }
  bool string(string_t&) override { return add_value(); }
  bool binary(binary_t&) override { return add_value(); }
  bool start_object(std::size_t) override { return begin(); }
  bool key(string_t&) override { return add(); }
  bool end_object() override { return end(); }
  bool start_array(std::size_t) override { return begin(); }
  bool end_array() override { return end(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override { return false; }

  bool is_exceeded() const { return depth_ > kDeepest || parts_ > kMostParts || values_ > kMostValues; }

 private:
  bool add() {
    ++parts_;
    return !is_exceeded();
  }
  bool add_value() {
    ++values_;
    return !is_exceeded();
  }
  bool begin() {
    ++depth_;
    return add();
  }
  bool end() {
    --depth_;
    return true;
  }

  int depth_ = 0;
  int64_t parts_ = 0, values_ = 0;
};

nlohmann::json parsed(std::string_view text) {
  PartCounter counter;
  nlohmann::json::sax_parse(text, &counter);
  if (counter.is_exceeded()) {
    throw ApiError(400,
                   io::compose("body: expected at most {} levels, {} objects, arrays and names, and {} other values, "
                               "got more",
                               kDeepest, kMostParts, kMostValues));
  }
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    throw ApiError(400, "body: expected JSON in UTF-8, got what is none: " + std::string(error.what()));
  }
}

}  // namespace

nlohmann::json to_json(const ApiError& error) {
  const auto or_null = [](const std::string& text) { return text.empty() ? nlohmann::json() : nlohmann::json(text); };
  const char* type = error.status >= 500 ? "server_error" : "invalid_request_error";
  return {
      {"error",
       {{"message", error.what()}, {"type", type}, {"param", or_null(error.param)}, {"code", or_null(error.code)}}}};
}

std::string type_of(const nlohmann::json& value) {
  if (value.is_null()) return "none";
  return value.is_array() && value.empty() ? "an empty array" : value.type_name();
}

std::optional<int64_t> integer_of(const nlohmann::json& value) {
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    // Integers below int64 are read as numbers of -2^63 and less.
    return number > -0x1p63 && number < 0x1p63 ? std::optional(static_cast<int64_t>(number)) : std::nullopt;
  }
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  return value.get<int64_t>();
}

Body::Body(std::string_view text) : Body(parsed(text), "") {}

Body::Body(nlohmann::json object, std::string prefix) : object_(std::move(object)), prefix_(std::move(prefix)) {
  if (object_.is_object()) return;
  const std::string what = prefix_.empty() ? "body" : prefix_.substr(0, prefix_.size() - 1);
  throw ApiError(400, what + ": expected a JSON object, got " + object_.type_name(), prefix_.empty() ? "" : what);
}

nlohmann::json Body::take(const char* name) {
  const auto found = object_.find(name);
  if (found == object_.end()) return {};
  nlohmann::json value = std::move(*found);
  object_.erase(found);
  return value;
}

std::optional<bool> Body::flag(const char* name) {
  const nlohmann::json value = take(name);
  if (value.is_null()) return std::nullopt;
  if (!value.is_boolean()) refuse_field(name_of(name), "expected true or false, got {}", value.type_name());
  return value.get<bool>();
}

std::optional<int64_t> Body::integer(const char* name, int64_t from, int64_t to) {
  const nlohmann::json value = take(name);
  if (value.is_null()) return std::nullopt;
  if (!is_integer(value)) {
    refuse_field(name_of(name), "expected an integer, got {}", value.is_number() ? value.dump() : value.type_name());
  }
  const std::optional<int64_t> found = integer_of(value);
  if (!found || *found < from || *found > to) {
    refuse_field(name_of(name), "expected {} to {}, got {}", from, to, value.dump());
  }
  return found;
}

std::optional<double> Body::number(const char* name, double from, double to) {
  const nlohmann::json value = take(name);
  if (value.is_null()) return std::nullopt;
  if (!value.is_number()) refuse_field(name_of(name), "expected a number, got {}", value.type_name());
  const auto found = value.get<double>();
  if (!(found >= from && found <= to)) refuse_field(name_of(name), "expected {} to {}, got {}", from, to, found);
  return found;
}

std::optional<std::string> Body::text(const char* name) {
  const nlohmann::json value = take(name);
  if (value.is_null()) return std::nullopt;
  if (!value.is_string()) refuse_field(name_of(name), "expected a string, got {}", value.type_name());
  return value.get<std::string>();
}

void Body::take_empty(std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    const nlohmann::json value = take(name);
    if (value.is_null() || (value.is_structured() && value.empty())) continue;
    refuse_field(name_of(name), "expected none, or an empty one, got {}", type_of(value));
  }
}

void Body::expect_no_more() const {
  for (const auto& [key, value] : object_.items()) {
    if (value.is_null()) continue;
    const std::string field = (prefix_ + key).substr(0, 100);
    throw ApiError(400, field + ": expected a field that is known here, got an unknown one", field);
  }
}

}  // namespace plimsoll::serve
