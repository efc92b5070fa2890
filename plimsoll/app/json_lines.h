// A log for machines: one JSON object a line, each on disk (in the system's hands) before the next step. One process at
// a time writes to it; where a second one wants to, it throws Error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "plimsoll/io/file_descriptor.h"

namespace plimsoll::app {

class JsonLines {
 public:
  // Starts the file anew; an empty path gives a log that keeps nothing.
  static JsonLines create(const std::filesystem::path& path);
  // Opens the file as create() does, but leaves what is in it until clear().
  static JsonLines open(const std::filesystem::path& path);
  // Goes on after the lines {"step": n} with n <= step, whose steps rise; others (lost steps, torn lines, a summary) are dropped.
  static JsonLines resume(const std::filesystem::path& path, int64_t step);

  // Empties the file.
  void clear();
  // Throws io::Error when the disk is full.
  void write(const nlohmann::json& line);

 private:
  explicit JsonLines(std::filesystem::path path);

  std::filesystem::path path_;
  io::FileDescriptor file_;
};

// The last line of such a file, which for a finished run is its summary; nothing if there is no whole line.
std::optional<nlohmann::json> last_json_line(const std::filesystem::path& path);

}  // namespace plimsoll::app
