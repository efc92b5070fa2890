#include "plimsoll/runtime/signal_before.h"

namespace plimsoll::runtime {

void pass_to_handler_before(const struct sigaction& before, int signal, siginfo_t* info, void* context) {
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  } else {
    std::signal(signal, SIG_DFL);
  }
}

}  // namespace plimsoll::runtime
