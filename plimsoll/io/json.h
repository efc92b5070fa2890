// JSON of untrusted files: a key that stands twice in one object, nesting deeper than 32 and files beyond 64 MiB are
// refused.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace plimsoll::io {

// `name` opens the error.
nlohmann::json parse_json(std::string_view text, const std::string& name);
nlohmann::json read_json(const std::filesystem::path& path);

}  // namespace plimsoll::io
