// A directory that is there whole or not at all.
#pragma once

#include <filesystem>

namespace plimsoll::app {

// Beside its place until it is complete; removed if it never is. Throws Error if the place is taken.
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
};

}  // namespace plimsoll::app
