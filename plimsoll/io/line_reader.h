// A text file line by line, without more of it in memory than a line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "plimsoll/io/regular_file.h"

namespace plimsoll::io {

class LineReader {
 public:
  // Far more than any log, prompt or list of ids has, and far less than memory.
  static constexpr size_t kMaxLineBytes = size_t{1} << 26;

  // Throws Error if the file is missing, unreadable or no regular file.
  explicit LineReader(std::filesystem::path path);

  // Fills `line` without its newline; false behind the last one. What is added to the file after it was opened is not
  // read. Throws Error for a line of more than kMaxLineBytes.
  bool next(std::string& line);

 private:
  bool fill();

  std::filesystem::path path_;
  RegularFile file_;
  uint64_t left_;  // bytes of the file that were not read
  std::string buffer_;
  size_t begin_ = 0;  // of what is in the buffer and was not returned
};

}  // namespace plimsoll::io
