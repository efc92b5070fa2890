#include "plimsoll/cli/threads_option.h"

#include "plimsoll/cli/field.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::cli {

Option threads_option(int64_t& threads) {
  return {"threads", "N", integer(threads, {.from = 0, .to = 4096}), "0: one a core"};
}

void use_threads(int64_t threads) {
  if (threads > 0) runtime::set_threads(static_cast<int>(threads));
  runtime::start_threads();
}

}  // namespace plimsoll::cli
