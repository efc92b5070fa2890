#include "plimsoll/io/atomic_file.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "plimsoll/io/error.h"

namespace plimsoll::io {
namespace {

namespace fs = std::filesystem;

}  // namespace

void write_all(int descriptor, std::span<const std::byte> bytes, const fs::path& name) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("{}: cannot write: {}", name.native(), std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void sync_directory(const fs::path& directory) {
  const fs::path place = directory.empty() ? fs::path(".") : directory;
  const FileDescriptor file(::open(place.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file || ::fsync(file.get()) != 0)
    fail("{}: cannot flush the directory: {}", place.native(), std::strerror(errno));
}

void rename_durably(const fs::path& from, const fs::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    fail("{}: cannot rename {} to it: {}", to.native(), from.filename().native(), std::strerror(errno));
  }
  sync_directory(to.parent_path());
}

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)), partial_(open_partial_file(path_)) {}

AtomicFile::~AtomicFile() {
  if (!committed_) ::unlink(partial_.name.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) { write_all(partial_.file.get(), bytes, path_); }

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void AtomicFile::commit() {
  if (::fsync(partial_.file.get()) != 0) fail("{}: cannot flush: {}", path_.native(), std::strerror(errno));
  rename_durably(partial_.name, path_);  // still open: its lock says that it has a writer
  committed_ = true;
}

void write_file(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace plimsoll::io
