#include "plimsoll/io/line_reader.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "plimsoll/io/error.h"

namespace plimsoll::io {

LineReader::LineReader(std::filesystem::path path)
    : path_(std::move(path)), file_(open_regular_file(path_)), left_(file_.bytes) {}

bool LineReader::fill() {
  constexpr size_t kChunk = size_t{1} << 16;
  buffer_.erase(0, begin_);
  begin_ = 0;
  const size_t held = buffer_.size();
  const size_t wanted = std::min<uint64_t>(kChunk, left_);
  if (wanted == 0) return false;
  buffer_.resize(held + wanted);
  ssize_t count = 0;
  do {
    count = ::read(file_.descriptor.get(), buffer_.data() + held, wanted);
  } while (count < 0 && errno == EINTR);
  if (count < 0) fail("{}: cannot read: {}", path_.native(), std::strerror(errno));
  buffer_.resize(held + static_cast<size_t>(count));
  left_ = count == 0 ? 0 : left_ - static_cast<uint64_t>(count);
  return count > 0;
}

bool LineReader::next(std::string& line) {
  size_t searched = 0;  // bytes behind begin_ that hold no newline
  while (true) {
    const size_t end = buffer_.find('\n', begin_ + searched);
    const size_t size = std::min(end, buffer_.size()) - begin_;
    if (size > kMaxLineBytes) fail("{}: expected lines of at most {} bytes, got more", path_.native(), kMaxLineBytes);
    if (end != buffer_.npos) {
      line.assign(buffer_, begin_, size);
      begin_ = end + 1;
      return true;
    }
    searched = size;
    if (fill()) continue;
    if (size == 0) return false;
    line = std::exchange(buffer_, {});
    return true;
  }
}

}  // namespace plimsoll::io
