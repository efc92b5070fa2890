// A directory that is there whole or not at all.
#pragma once

#include <filesystem>
#include <string_view>

#include "plimsoll/io/output_lock.h"

namespace plimsoll::app {

// Nothing has this name, not even a link. kind: "directory" or "file". Throws UsageError.
void expect_free(const std::filesystem::path& path, std::string_view kind);

// Beside its place until it is complete; removed if it never is. Throws Error if the place is taken, or if another
// process is about to take it.
class NewDirectory {
 public:
  explicit NewDirectory(const std::filesystem::path& path);
  ~NewDirectory();
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  const std::filesystem::path& partial() const { return partial_; }
  void commit();

 private:
  std::filesystem::path path_, partial_;
  io::OutputLock lock_;
};

}  // namespace plimsoll::app
