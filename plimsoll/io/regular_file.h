// The door for every file that is read: regular files alone. A named pipe, a terminal or a device would make the reader
// wait or read for ever; a file that is larger than its reader can use is refused before any of it is read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>

#include "plimsoll/io/file_descriptor.h"

namespace plimsoll::io {

inline constexpr uint64_t kAnySize = std::numeric_limits<uint64_t>::max();

struct RegularFile {
  FileDescriptor descriptor;
  uint64_t bytes;  // its size as it was opened
};

// Never waits. Throws Error for a file that is missing, unreadable, not a regular one or larger than `limit` bytes.
RegularFile open_regular_file(const std::filesystem::path& path, uint64_t limit = kAnySize);

// The file's bytes as a copy, which stays whole when another process changes the file.
std::string read_file(const std::filesystem::path& path, uint64_t limit);

}  // namespace plimsoll::io
