// A file of one's own, beside the place that it is renamed to when it is whole: PATH.1f2e3d4c.partial. No two writers
// of one path share it. Its writer holds a lock on it, which ends with the writer, so what a killed process has left is
// told from what a live one writes: the next writer of the path removes the former and never the latter.
#pragma once

#include <filesystem>

#include "plimsoll/io/file_descriptor.h"

namespace plimsoll::io {

struct PartialFile {
  std::filesystem::path name;
  FileDescriptor file;  // keep it open until the file is renamed or removed
};

// Throws Error, which names `path`.
PartialFile open_partial_file(const std::filesystem::path& path);

}  // namespace plimsoll::io
