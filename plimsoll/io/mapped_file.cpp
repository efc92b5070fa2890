#include "plimsoll/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "plimsoll/io/error.h"
#include "plimsoll/io/file_descriptor.h"

namespace plimsoll::io {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) fail("{}: cannot open: {}", path.native(), std::strerror(errno));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail("{}: cannot read its size: {}", path.native(), std::strerror(errno));
  if (!S_ISREG(status.st_mode)) {
    fail("{}: expected a regular file, got {}", path.native(), S_ISDIR(status.st_mode) ? "a directory" : "a device");
  }
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return;
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.get(), 0);
  if (memory == MAP_FAILED) fail("{}: cannot map {} bytes: {}", path.native(), size, std::strerror(errno));
  bytes_ = {static_cast<std::byte*>(memory), size};
}

void MappedFile::release(std::span<const std::byte> part) const {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t first = reinterpret_cast<uintptr_t>(part.data());
  const uintptr_t begin = (first + page - 1) / page * page, end = (first + part.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

}  // namespace plimsoll::io
