// Many files read as one long text. Large files are mapped, so a text may be larger than memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "plimsoll/io/mapped_file.h"

namespace plimsoll::io {

class Text {
 public:
  // Throws Error for a file that cannot be read.
  explicit Text(const std::vector<std::filesystem::path>& files);

  int64_t bytes() const { return starts_.back(); }

  // SHA-256 of the whole text. Reads all of it, at some 1.6 GB a second.
  std::string digest() const;

  // Copies text[begin, begin + output.size()); the range must lie inside the text.
  void read(int64_t begin, std::span<std::byte> output) const;

 private:
  // A small file is copied and unmapped, because a process may hold some 65,000 mappings only.
  using Piece = std::variant<MappedFile, std::vector<std::byte>>;
  static std::span<const std::byte> bytes_of(const Piece& piece);

  std::vector<Piece> pieces_;
  std::vector<int64_t> starts_;  // of each piece in the text, and the end of the last
};

}  // namespace plimsoll::io
