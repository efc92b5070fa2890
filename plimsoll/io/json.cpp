#include "plimsoll/io/json.h"

#include <set>
#include <vector>

#include "plimsoll/io/error.h"
#include "plimsoll/io/regular_file.h"

namespace plimsoll::io {

using nlohmann::json;

json parse_json(std::string_view text, const std::string& name) {
  constexpr int kMaxDepth = 32;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMaxDepth) fail("{}: expected JSON nested at most {} deep", name, kMaxDepth);
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      fail("{}: expected each key once, got {} twice", name, value.dump());
    }
    return true;
  };
  // The parser takes a zero byte for the end of the text.
  if (const size_t zero = text.find('\0'); zero != text.npos) {
    fail("{}: expected valid JSON, got an error at byte {}", name, zero + 1);
  }
  try {
    return json::parse(text, check);
  } catch (const json::parse_error& error) {
    fail("{}: expected valid JSON, got an error at byte {}", name, error.byte);
  } catch (const json::out_of_range&) {
    fail("{}: expected numbers that a double holds, got a larger one", name);
  }
}

json read_json(const std::filesystem::path& path) {
  // A parsed document takes about twenty times its text.
  constexpr uint64_t kMaxBytes = uint64_t{1} << 26;
  return parse_json(read_file(path, kMaxBytes), path.native());
}

}  // namespace plimsoll::io
