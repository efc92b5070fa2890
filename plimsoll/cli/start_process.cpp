#include "plimsoll/cli/start_process.h"

#include <csignal>

#include "plimsoll/ops/memory/caching_allocator.h"
#include "plimsoll/runtime/cpu_quota.h"

namespace plimsoll::cli {

void start_process() {
  use_caching_allocator();
  runtime::keep_to_cpu_quota();
  std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace plimsoll::cli
