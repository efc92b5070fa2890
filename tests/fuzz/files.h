// Fuzzed bytes as files: what the loaders read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace plimsoll::fuzz {

// A directory of this process, removed with it.
class Files {
 public:
  Files();
  ~Files();
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void write(const char* name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::filesystem::path path_;
};

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// A safetensors file of FP32 zeros: one tensor [rows, columns] of this name.
std::string safetensors_of(const std::string& name, int rows, int columns);

// An error must be one line that is not empty.
void check_line(std::string_view what);

}  // namespace plimsoll::fuzz
