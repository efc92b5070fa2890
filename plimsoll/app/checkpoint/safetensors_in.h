// The safetensors files of a directory.
#pragma once

#include <algorithm>
#include <filesystem>
#include <vector>

namespace plimsoll::app {

// Sorted by name; those of folders in it are left out.
inline std::vector<std::filesystem::path> safetensors_in(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace plimsoll::app
