#include "plimsoll/io/json.h"

#include <vector>

#include "plimsoll/io/error.h"
#include "plimsoll/io/regular_file.h"

namespace plimsoll::io {

using nlohmann::json;

namespace {

constexpr size_t kMaxDepth = 32;

// Builds the value from the parser's events; nlohmann's own builder overwrites a key that comes again.
class Builder : public json::json_sax_t {
 public:
  explicit Builder(const std::string& name) : name_(name) {}

  json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(json::binary_t&) override { return false; }  // JSON as text has none

  bool start_object(size_t) override { return open(json::object()); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(json::array()); }
  bool end_array() override { return close(); }

  bool key(std::string& key) override {
    const auto [place, is_new] = open_.back()->get_ref<json::object_t&>().emplace(key, nullptr);
    if (!is_new) fail("{}: expected each key once, got {} twice", name_, json(key).dump());
    value_ = &place->second;
    return true;
  }

  bool parse_error(size_t byte, const std::string&, const json::exception& error) override {
    constexpr int kNumberOverflow = 406;  // as nlohmann documents
    if (error.id == kNumberOverflow) fail("{}: expected numbers that a double holds, got a larger one", name_);
    fail("{}: expected valid JSON, got an error at byte {}", name_, byte);
  }

 private:
  json& place(json&& value) {
    if (open_.empty()) return root_ = std::move(value);
    if (open_.back()->is_object()) return *value_ = std::move(value);
    return open_.back()->emplace_back(std::move(value));
  }
  bool add(json&& value) {
    place(std::move(value));
    return true;
  }
  bool open(json&& value) {
    if (open_.size() == kMaxDepth) fail("{}: expected JSON nested at most {} deep", name_, kMaxDepth);
    open_.push_back(&place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string& name_;
  json root_;
  std::vector<json*>
      open_;               // objects and arrays, the outermost first; none of them moves while one inside of it is open
  json* value_ = nullptr;  // of the last key
};

}  // namespace

json parse_json(std::string_view text, const std::string& name) {
  // The parser takes a zero byte for the end of the text.
  if (const size_t zero = text.find('\0'); zero != text.npos) {
    fail("{}: expected valid JSON, got an error at byte {}", name, zero + 1);
  }
  Builder builder(name);
  json::sax_parse(text, &builder);
  return builder.take();
}

json read_json(const std::filesystem::path& path) {
  // A parsed document takes about twenty times its text.
  constexpr uint64_t kMaxBytes = uint64_t{1} << 26;
  return parse_json(read_file(path, kMaxBytes), path.native());
}

}  // namespace plimsoll::io
