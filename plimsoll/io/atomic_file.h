// Files that are there whole or not at all: written beside their place, flushed to the disk, renamed.
// After a crash or a full disk the old file, if any, is as it was. Of several writers of one path each writes a file of
// its own, and the last one to commit wins.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "plimsoll/io/partial_file.h"

namespace plimsoll::io {

class AtomicFile {
 public:
  // Throws Error, as all members do, with the path and the system's reason.
  explicit AtomicFile(std::filesystem::path path);
  // Removes what was written unless it was committed.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  void commit();

 private:
  std::filesystem::path path_;
  PartialFile partial_;
  bool committed_ = false;
};

void write_file(const std::filesystem::path& path, std::string_view text);

// Writes all bytes to an open file; `name` is for the error.
void write_all(int descriptor, std::span<const std::byte> bytes, const std::filesystem::path& name);

// Makes the names inside a directory durable.
void sync_directory(const std::filesystem::path& directory);

// rename(2), made durable.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace plimsoll::io
