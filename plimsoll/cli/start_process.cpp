#include "plimsoll/cli/start_process.h"

#include <c10/util/Logging.h>

#include <csignal>
#include <cstdlib>

#include "plimsoll/ops/memory/caching_allocator.h"
#include "plimsoll/runtime/cpu_quota.h"

namespace plimsoll::cli {

void start_process() {
  use_caching_allocator();
  runtime::keep_to_cpu_quota();
  std::signal(SIGXFSZ, SIG_IGN);
  // c10d logs what a rank that has ended means, with a stack, before the error that names the rank.
  ::setenv("TORCH_CPP_LOG_LEVEL", "ERROR", /*overwrite=*/0);
  c10::initLogging();
}

}  // namespace plimsoll::cli
