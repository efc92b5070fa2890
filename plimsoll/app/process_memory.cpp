#include "plimsoll/app/process_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace plimsoll::app {

int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

std::optional<int64_t> available_memory_bytes() {
  std::optional<int64_t> available;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string name; meminfo >> name;) {
    int64_t kibibytes = 0;
    if (name == "MemAvailable:" && meminfo >> kibibytes) available = kibibytes * 1024;
    meminfo.ignore(1 << 16, '\n');
  }
  std::ifstream limit("/sys/fs/cgroup/memory.max");  // "max" where there is none
  int64_t most = 0;
  if (limit >> most) available = std::min(available.value_or(most), most);
  return available;
}

}  // namespace plimsoll::app
