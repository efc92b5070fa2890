// The right to write to a place, which one process at a time has: a second run with the same --out is refused at its
// start. A lock ends with its process, however that ends, and children that the process forks do not have it.
#pragma once

#include <cstdint>
#include <filesystem>

namespace plimsoll::io {

// Locks that one process takes on one place are shared: the place is free when the last of them has ended. Where the
// file system has no locks nobody is refused.
class OutputLock {
 public:
  // Makes the directory, and `.lock` inside of it while the lock lasts. Throws Error, which names the place, where
  // another process has it.
  static OutputLock of_directory(const std::filesystem::path& directory);
  // Makes FILE.lock while the lock lasts. FILE may be the name of a directory that is to be made.
  static OutputLock of_file(const std::filesystem::path& file);

  ~OutputLock();
  OutputLock(OutputLock&& other) noexcept;
  OutputLock& operator=(OutputLock&&) = delete;

 private:
  OutputLock(const std::filesystem::path& place, const std::filesystem::path& lock_file);

  int64_t number_;  // of the lock among those of this process; 0: none
};

}  // namespace plimsoll::io
