// A whole regular file as memory, read on demand. The mapping is private: writing to it never reaches the file.
// Bytes that the file has lost since it was opened, because another process shortened it, are read as zeros and told by
// check_mapped_files() (mapping_guard.h).
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace plimsoll::io {

class MappedFile {
 public:
  // Throws Error if the file is missing, unreadable or no regular file.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

  // Gives the memory of whole pages inside `part` back: what was written to them is lost, and they are read again when
  // they are touched again.
  void release(std::span<const std::byte> part) const;

 private:
  std::span<std::byte> bytes_;
};

}  // namespace plimsoll::io
