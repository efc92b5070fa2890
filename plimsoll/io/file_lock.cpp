#include "plimsoll/io/file_lock.h"

#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>

namespace plimsoll::io {
namespace {

// 0, or the reason why there is no lock.
int lock_now(int file) {
  while (::flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace

bool lock_unless_held(int file) { return lock_now(file) != EWOULDBLOCK; }

bool lock_for_certain(int file) { return lock_now(file) == 0; }

bool still_has_name(int file, const std::filesystem::path& name) {
  struct stat opened {
  }, named{};
  return ::fstat(file, &opened) == 0 && ::lstat(name.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

}  // namespace plimsoll::io
