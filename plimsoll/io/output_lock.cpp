#include "plimsoll/io/output_lock.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "plimsoll/io/error.h"
#include "plimsoll/io/file_descriptor.h"
#include "plimsoll/io/file_lock.h"

namespace plimsoll::io {
namespace {

namespace fs = std::filesystem;

// A lock file that this process holds, for each OutputLock that shares it.
struct HeldLock {
  fs::path path;
  dev_t device;
  ino_t inode;
  FileDescriptor file;
  std::vector<int64_t> numbers;
};

// The locks of this process. A fork waits until no thread changes them; the child then closes its copies of the
// descriptors, which would keep the parent's locks alive.
class HeldLocks {
 public:
  static HeldLocks& instance() {
    static HeldLocks* const locks = new HeldLocks;  // never destroyed: fork handlers stay
    return *locks;
  }

  std::mutex mutex;
  std::list<HeldLock> held;
  int64_t last_number = 0;

 private:
  HeldLocks() {
    pthread_atfork([] { instance().mutex.lock(); }, [] { instance().mutex.unlock(); },
                   [] {
                     instance().held.clear();
                     instance().mutex.unlock();
                   });
  }
};

FileDescriptor open_lock_file(const fs::path& place, const fs::path& path) {
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
  if (!file) fail("{}: cannot write there: {}", place.native(), std::strerror(errno));
  return file;
}

std::string holder_of(int file) {
  char text[32] = {};
  const ssize_t size = ::pread(file, text, sizeof(text) - 1, 0);
  const std::string digits(text, static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return digits.empty() ? "" : " (" + digits + ")";
}

// The holder's process, for the error that others get.
void write_holder(int file) {
  const std::string text = "process " + std::to_string(::getpid());
  if (::ftruncate(file, 0) != 0 || ::pwrite(file, text.data(), text.size(), 0) < 0) return;  // a full disk: no name
}

}  // namespace

OutputLock OutputLock::of_directory(const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) fail("{}: cannot write there: {}", directory.native(), error.message());
  return {directory, directory / ".lock"};
}

OutputLock OutputLock::of_file(const fs::path& file) { return {file, file.native() + ".lock"}; }

OutputLock::OutputLock(const fs::path& place, const fs::path& lock_file) : number_(0) {
  HeldLocks& locks = HeldLocks::instance();
  const std::lock_guard guard(locks.mutex);
  while (number_ == 0) {
    FileDescriptor file = open_lock_file(place, lock_file);
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) fail("{}: cannot look at: {}", lock_file.native(), std::strerror(errno));
    const auto same = [&](const HeldLock& held) { return held.device == status.st_dev && held.inode == status.st_ino; };
    auto held = std::find_if(locks.held.begin(), locks.held.end(), same);
    if (held == locks.held.end()) {
      if (!lock_unless_held(file.get())) {
        fail("{}: expected a place that no other process writes to, got one that another run{} has", place.native(),
             holder_of(file.get()));
      }
      if (!still_has_name(file.get(), lock_file)) continue;  // its holder has ended and removed it
      write_holder(file.get());
      held = locks.held.insert(locks.held.end(),
                               {fs::absolute(lock_file), status.st_dev, status.st_ino, std::move(file), {}});
    }
    number_ = ++locks.last_number;
    held->numbers.push_back(number_);
  }
}

OutputLock::OutputLock(OutputLock&& other) noexcept : number_(std::exchange(other.number_, 0)) {}

OutputLock::~OutputLock() {
  HeldLocks& locks = HeldLocks::instance();
  const std::lock_guard guard(locks.mutex);
  for (auto held = locks.held.begin(); held != locks.held.end(); ++held) {
    if (std::erase(held->numbers, number_) == 0) continue;
    if (!held->numbers.empty()) return;
    if (still_has_name(held->file.get(), held->path)) ::unlink(held->path.c_str());
    locks.held.erase(held);
    return;
  }
}

}  // namespace plimsoll::io
