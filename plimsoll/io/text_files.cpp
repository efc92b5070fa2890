#include "plimsoll/io/text_files.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "plimsoll/io/error.h"
#include "plimsoll/io/regular_file.h"

namespace plimsoll::io {
namespace {

namespace fs = std::filesystem;

bool is_text(const fs::path& path) {
  const RegularFile file = open_regular_file(path);
  std::array<char, 8000> start{};
  const ssize_t count = ::read(file.descriptor.get(), start.data(), start.size());
  if (count < 0) fail("{}: cannot read: {}", path.native(), std::strerror(errno));
  const auto end = start.begin() + count;
  return end != start.begin() && std::find(start.begin(), end, '\0') == end;
}

bool is_hidden(const fs::path& path) { return path.filename().native().starts_with('.'); }

std::vector<fs::path> text_files_in(const fs::path& directory) {
  std::vector<fs::path> found;
  for (auto entry = fs::recursive_directory_iterator(directory); entry != fs::recursive_directory_iterator(); ++entry) {
    if (is_hidden(entry->path())) {
      if (entry->is_directory()) entry.disable_recursion_pending();
    } else if (entry->is_regular_file() && is_text(entry->path())) {
      found.push_back(entry->path());
    }
  }
  if (found.empty()) fail("{}: expected a directory with text files, got none in it", directory.native());
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

std::vector<fs::path> find_text_files(const std::vector<fs::path>& paths) {
  std::vector<fs::path> files;
  try {
    for (const fs::path& path : paths) {
      if (!fs::exists(path)) fail("{}: expected a file or directory, got nothing of that name", path.native());
      if (fs::is_directory(path)) {
        const std::vector<fs::path> found = text_files_in(path);
        files.insert(files.end(), found.begin(), found.end());
      } else {
        files.push_back(path);
      }
    }
  } catch (const fs::filesystem_error& error) {
    fail("{}: {}", error.path1().native(), error.code().message());
  }
  return files;
}

}  // namespace plimsoll::io
