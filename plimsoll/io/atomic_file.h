// Files that are there whole or not at all: written beside their place, flushed to the disk, renamed.
// After a crash or a full disk the old file, if any, is as it was. One writer at a time for one path.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "plimsoll/io/file_descriptor.h"

namespace plimsoll::io {

class AtomicFile {
 public:
  // Opens `<path>.partial`. Throws Error, as all members do, with the path and the system's reason.
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
  std::filesystem::path partial_;
  FileDescriptor file_;
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
