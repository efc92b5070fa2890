#include "plimsoll/io/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "plimsoll/io/error.h"

namespace plimsoll::io {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

RegularFile open_regular_file(const std::filesystem::path& path, uint64_t limit) {
  // A pipe without a writer would make open() wait; a terminal would become this process's own.
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  const int error = errno;
  if (!file && error == ENXIO) fail("{}: expected a regular file, got a socket or a device", path.native());
  if (!file) fail("{}: cannot open: {}", path.native(), std::strerror(error));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail("{}: cannot read its size: {}", path.native(), std::strerror(errno));
  if (!S_ISREG(status.st_mode)) {
    fail("{}: expected a regular file, got {}", path.native(), kind_of(status.st_mode));
  }
  const auto bytes = static_cast<uint64_t>(status.st_size);
  if (bytes > limit) fail("{}: expected a file of at most {} bytes, got {}", path.native(), limit, bytes);
  return {std::move(file), bytes};
}

std::string read_file(const std::filesystem::path& path, uint64_t limit) {
  const RegularFile file = open_regular_file(path, limit);
  std::string bytes(file.bytes, '\0');
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t count = ::read(file.descriptor.get(), bytes.data() + filled, bytes.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("{}: cannot read: {}", path.native(), std::strerror(errno));
    if (count == 0) break;  // shortened meanwhile
    filled += static_cast<size_t>(count);
  }
  bytes.resize(filled);
  return bytes;
}

}  // namespace plimsoll::io
