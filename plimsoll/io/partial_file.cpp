#include "plimsoll/io/partial_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "plimsoll/io/error.h"
#include "plimsoll/io/file_lock.h"

namespace plimsoll::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEnding = ".partial";
constexpr size_t kDigits = 8;

fs::path random_name(const fs::path& path) {
  std::random_device source;
  return compose("{}.{:08x}{}", path.native(), source(), kEnding);
}

bool is_partial_of(std::string_view name, std::string_view target) {
  if (name.size() != target.size() + 1 + kDigits + kEnding.size()) return false;
  const std::string_view digits = name.substr(target.size() + 1, kDigits);
  return name.starts_with(target) && name[target.size()] == '.' && name.ends_with(kEnding) &&
         digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Best effort: what cannot be looked at stays.
void remove_what_killed_writers_left(const fs::path& path) {
  std::error_code error;
  const fs::path directory = path.has_parent_path() ? path.parent_path() : ".";
  std::vector<fs::path> found;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    if (is_partial_of(entry->path().filename().native(), path.filename().native())) found.push_back(entry->path());
  }
  for (const fs::path& name : found) {
    const FileDescriptor file(::open(name.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (file && lock_for_certain(file.get()) && still_has_name(file.get(), name)) ::unlink(name.c_str());
  }
}

}  // namespace

PartialFile open_partial_file(const fs::path& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    fail("{}: expected a regular file or a free name to write to", path.native());
  }
  remove_what_killed_writers_left(path);
  while (true) {
    fs::path name = random_name(path);
    FileDescriptor file(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!file && errno == EEXIST) continue;
    if (!file) fail("{}: cannot create: {}", path.native(), std::strerror(errno));
    // Between these two lines another writer may take the file for what a killed one left.
    if (lock_unless_held(file.get()) && still_has_name(file.get(), name)) return {std::move(name), std::move(file)};
  }
}

}  // namespace plimsoll::io
