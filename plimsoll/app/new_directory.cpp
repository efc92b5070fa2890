#include "plimsoll/app/new_directory.h"

#include "plimsoll/app/error.h"
#include "plimsoll/io/atomic_file.h"

namespace plimsoll::app {
namespace {

namespace fs = std::filesystem;

// A name with a trailing slash would hide itself.
fs::path without_slash(const fs::path& path) { return path.has_filename() ? path : path.parent_path(); }

}  // namespace

void expect_free(const fs::path& path, std::string_view kind) {
  if (!fs::exists(fs::symlink_status(path))) return;  // a link that leads nowhere is there, too
  refuse("{}: expected a free name for a new {}, got one that exists", path.native(), kind);
}

NewDirectory::NewDirectory(const fs::path& path)
    : path_(without_slash(path)), partial_(path_.native() + ".partial"), lock_(io::OutputLock::of_file(path_)) {
  expect_free(path_, "directory");
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
