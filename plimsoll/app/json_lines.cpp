#include "plimsoll/app/json_lines.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "plimsoll/app/error.h"
#include "plimsoll/io/atomic_file.h"
#include "plimsoll/io/file_lock.h"
#include "plimsoll/io/line_reader.h"

namespace plimsoll::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// The step of a line; 0 where it is torn, or of no step.
int64_t step_of(const std::string& line) {
  const json value = json::parse(line, nullptr, /*allow_exceptions=*/false);
  const bool has_step = value.is_object() && value.contains("step") && value["step"].is_number_integer();
  return has_step ? value["step"].get<int64_t>() : 0;
}

}  // namespace

JsonLines::JsonLines(fs::path path)
    : path_(std::move(path)),
      file_(path_.empty() ? -1 : ::open(path_.c_str(), O_APPEND | O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666)) {
  if (path_.empty()) return;
  const int error = errno;
  if (!file_ && error == ENXIO) fail("{}: expected a file, or a pipe that somebody reads", path_.native());
  if (!file_) fail("{}: cannot create: {}", path_.native(), std::strerror(error));
  // Opening did not wait for a pipe's reader; writing waits as ever.
  ::fcntl(file_.get(), F_SETFL, ::fcntl(file_.get(), F_GETFL) & ~O_NONBLOCK);
  if (!fs::is_regular_file(path_)) return;
  if (!io::lock_unless_held(file_.get())) {
    fail("{}: expected a file that no other process writes to, another one does", path_.native());
  }
}

JsonLines JsonLines::create(const fs::path& path) {
  JsonLines lines(path);
  lines.clear();
  return lines;
}

JsonLines JsonLines::open(const fs::path& path) { return JsonLines(path); }

void JsonLines::clear() {
  if (path_.empty() || !fs::is_regular_file(path_)) return;
  if (::ftruncate(file_.get(), 0) != 0) fail("{}: cannot empty: {}", path_.native(), std::strerror(errno));
}

JsonLines JsonLines::resume(const fs::path& path, int64_t step) {
  if (path.empty() || !fs::is_regular_file(path)) return create(path);
  std::string kept;
  io::LineReader file(path);
  int64_t last = 0;
  for (std::string line; file.next(line);) {
    const int64_t its_step = step_of(line);
    if (its_step <= last || its_step > step) continue;
    kept += line + "\n";
    last = its_step;
  }
  io::write_file(path, kept);
  return JsonLines(path);
}

void JsonLines::write(const json& line) {
  if (path_.empty()) return;
  const std::string text = line.dump() + "\n";
  io::write_all(file_.get(), std::as_bytes(std::span(text)), path_);
}

std::optional<json> last_json_line(const fs::path& path) {
  if (!fs::exists(path)) return std::nullopt;
  io::LineReader file(path);
  std::string last;
  while (file.next(last)) {
  }
  json value = json::parse(last, nullptr, /*allow_exceptions=*/false);
  return value.is_object() ? std::optional(std::move(value)) : std::nullopt;
}

}  // namespace plimsoll::app
