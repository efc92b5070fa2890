// Files that a training run reads.
#pragma once

#include <filesystem>
#include <vector>

namespace plimsoll::io {

// Files are taken as named; directories are searched, and of what is found there the text files are taken, sorted by
// path. Skipped in directories: hidden names, empty and binary files (a zero byte in the first 8,000, as git decides),
// links to directories. Throws Error for a path that is missing or unreadable, or a directory without any text file.
std::vector<std::filesystem::path> find_text_files(const std::vector<std::filesystem::path>& paths);

}  // namespace plimsoll::io
