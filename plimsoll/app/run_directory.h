// The directory that a run writes to.
#pragma once

#include <filesystem>
#include <optional>

#include "plimsoll/io/output_lock.h"

namespace plimsoll::app {

// Made at the start and this run's alone until the end, without what killed runs left half-done. One that is made for
// nothing, because the run cannot begin, is removed again.
class RunDirectory {
 public:
  // Throws io::Error where another process has it.
  explicit RunDirectory(const std::filesystem::path& path);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  // The run has begun: from here on the directory stays.
  void keep() { is_kept_ = true; }

 private:
  std::filesystem::path path_;
  bool is_kept_;
  std::optional<io::OutputLock> lock_;
};

}  // namespace plimsoll::app
