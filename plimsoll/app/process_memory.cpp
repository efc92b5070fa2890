#include "plimsoll/app/process_memory.h"

#include <sys/resource.h>

namespace plimsoll::app {

int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace plimsoll::app
