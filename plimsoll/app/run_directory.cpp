#include "plimsoll/app/run_directory.h"

#include <unistd.h>

#include "plimsoll/io/checkpoint.h"

namespace plimsoll::app {

RunDirectory::RunDirectory(const std::filesystem::path& path)
    : path_(path), is_kept_(std::filesystem::exists(path)), lock_(io::OutputLock::of_directory(path)) {
  io::remove_left_overs(path);
}

RunDirectory::~RunDirectory() {
  lock_.reset();                          // its file is inside
  if (!is_kept_) ::rmdir(path_.c_str());  // refused by the system unless it is empty
}

}  // namespace plimsoll::app
