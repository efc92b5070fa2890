#include "plimsoll/app/process/process_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

namespace plimsoll::app {
namespace {

namespace fs = std::filesystem;

// The first number of a file; nullopt where there is none, as of "max".
std::optional<int64_t> number_in(const fs::path& file) {
  std::ifstream stream(file);
  int64_t value = 0;
  if (stream >> value) return value;
  return std::nullopt;
}

// The number that follows a name in a file.
std::optional<int64_t> number_after(const fs::path& file, const std::string& name) {
  std::ifstream stream(file);
  int64_t value = 0;
  for (std::string word; stream >> word;) {
    if (word == name && stream >> value) return value;
    stream.ignore(1 << 16, '\n');
  }
  return std::nullopt;
}

// Names of a control group's files, in the second and the first version of the interface.
struct GroupFiles {
  const char *limit, *used, *idle;
};
constexpr GroupFiles kSecond{"memory.max", "memory.current", "inactive_file"};
constexpr GroupFiles kFirst{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};

// The least that the group and those around it leave.
std::optional<int64_t> left_by_groups(const fs::path& root, const fs::path& group, const GroupFiles& files) {
  std::optional<int64_t> least;
  for (fs::path each = group.relative_path();; each = each.parent_path()) {
    const fs::path folder = root / each;
    const auto limit = number_in(folder / files.limit), used = number_in(folder / files.used);
    if (limit && used) {
      // Pages of files go where memory is needed.
      const int64_t idle = number_after(folder / "memory.stat", files.idle).value_or(0);
      const int64_t left = std::max<int64_t>(*limit - *used + idle, 0);
      least = std::min(least.value_or(left), left);
    }
    if (each.empty()) return least;
  }
}

std::optional<int64_t> left_by_groups() {
  std::optional<int64_t> least;
  std::ifstream groups("/proc/self/cgroup");  // "4:memory:/group", of the second version "0::/group"
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    std::optional<int64_t> left;
    if (controllers.empty()) left = left_by_groups("/sys/fs/cgroup", group, kSecond);
    if (controllers == "memory") left = left_by_groups("/sys/fs/cgroup/memory", group, kFirst);
    if (left) least = std::min(least.value_or(*left), *left);
  }
  return least;
}

}  // namespace

int64_t peak_rss_bytes() {
  if (const auto kibibytes = number_after("/proc/self/status", "VmHWM:")) return *kibibytes * 1024;
  rusage usage{};  // where this program began as the copy of a larger one, that one's
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

int64_t rss_bytes() {
  std::ifstream statm("/proc/self/statm");  // pages: all, resident, ...
  int64_t all = 0, resident = 0;
  statm >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

std::optional<int64_t> available_memory_bytes() {
  const auto kibibytes = number_after("/proc/meminfo", "MemAvailable:");
  const auto left = left_by_groups();
  if (!kibibytes) return left;
  return std::min(*kibibytes * 1024, left.value_or(*kibibytes * 1024));
}

}  // namespace plimsoll::app
