#include "plimsoll/tokenize/fields.h"

#include "plimsoll/io/error.h"
#include "plimsoll/tokenize/utf8.h"

namespace plimsoll::tokenize {

using nlohmann::json;

std::string shown(const json& value) {
  constexpr size_t kMaxBytes = 60;
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  if (!value.is_string()) return value.dump();
  const auto& text = value.get_ref<const std::string&>();
  if (text.size() <= kMaxBytes) return value.dump();
  return json(text.substr(0, valid_bytes(text.substr(0, kMaxBytes)))).dump() + " and more";
}

Fields::Fields(const json& object, std::string name) : object_(&object), name_(std::move(name)) {
  if (!object.is_object()) io::fail("{}: expected an object, got {}", name_, shown(object));
}

std::string Fields::name_of(std::string_view key) const { return io::compose("{}.{}", name_, key); }

const json& Fields::at(std::string_view key) const {
  static const json kNull;
  const auto found = object_->find(key);
  return found == object_->end() ? kNull : *found;
}

void Fields::refuse(std::string_view key, std::string_view expected) const {
  const json& value = at(key);
  io::fail("{}: expected {}, got {}", name_of(key), expected, value.is_null() ? "none" : shown(value));
}

std::string Fields::text(std::string_view key) const {
  if (!at(key).is_string()) refuse(key, "a string");
  return at(key).get<std::string>();
}

std::optional<std::string> Fields::text_or_none(std::string_view key) const {
  if (at(key).is_null()) return std::nullopt;
  return text(key);
}

bool Fields::flag(std::string_view key) const {
  if (!at(key).is_boolean()) refuse(key, "true or false");
  return at(key).get<bool>();
}

bool Fields::flag(std::string_view key, bool absent) const { return at(key).is_null() ? absent : flag(key); }

int64_t Fields::integer(std::string_view key, int64_t limit) const {
  const json& value = at(key);
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= static_cast<uint64_t>(limit)) {
    refuse(key, io::compose("an integer from 0 to {}", limit - 1));
  }
  return value.get<int64_t>();
}

char32_t Fields::character(std::string_view key) const {
  const std::string value = text(key);
  if (value.empty() || character_at(value, 0).bytes != value.size()) refuse(key, "one character");
  return character_at(value, 0).value;
}

Fields Fields::object(std::string_view key) const { return {at(key), name_of(key)}; }

void Fields::for_each(std::string_view key, const Visit& visit) const {
  const json& array = at(key);
  if (!array.is_array()) refuse(key, "an array");
  for (size_t i = 0; i < array.size(); ++i) visit(array[i], io::compose("{}.{}[{}]", name_, key, i));
}

namespace {

constexpr size_t kMaxSteps = 64;

void visit_steps(const json& component, const std::string& name, std::string_view list_key, size_t& count,
                 const std::function<void(const Fields&, const std::string&)>& visit) {
  const Fields fields(component, name);
  const std::string type = fields.text("type");
  if (type == "Sequence") {
    fields.for_each(list_key, [&](const json& step, const std::string& place) {
      visit_steps(step, place, list_key, count, visit);
    });
    return;
  }
  if (++count > kMaxSteps) io::fail("{}: expected at most {} steps, got more", name, kMaxSteps);
  visit(fields, type);
}

}  // namespace

void for_each_step(const json& component, const std::string& name, std::string_view list_key,
                   const std::function<void(const Fields&, const std::string&)>& visit) {
  size_t count = 0;
  if (!component.is_null()) visit_steps(component, name, list_key, count, visit);
}

}  // namespace plimsoll::tokenize
