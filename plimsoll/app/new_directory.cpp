#include "plimsoll/app/new_directory.h"

#include "plimsoll/app/error.h"
#include "plimsoll/io/atomic_file.h"

namespace plimsoll::app {
namespace {

namespace fs = std::filesystem;

// A name with a trailing slash would hide itself.
fs::path without_slash(const fs::path& path) { return path.has_filename() ? path : path.parent_path(); }

}  // namespace

NewDirectory::NewDirectory(const fs::path& path)
    : path_(without_slash(path)), partial_(path_.native() + ".partial"), lock_(io::OutputLock::of_file(path_)) {
  if (fs::exists(path_)) refuse("{}: expected a free name for a new directory, got one that exists", path_.native());
  std::error_code error;
  fs::remove_all(partial_, error);
  fs::create_directory(partial_, error);
  if (error) fail("{}: cannot create: {}", path_.native(), error.message());
}

NewDirectory::~NewDirectory() {
  std::error_code ignored;
  fs::remove_all(partial_, ignored);
}

void NewDirectory::commit() { io::rename_durably(partial_, path_); }

}  // namespace plimsoll::app
