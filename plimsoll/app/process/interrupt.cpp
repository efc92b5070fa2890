#include "plimsoll/app/process/interrupt.h"

#include <signal.h>

#include <string>

#include "plimsoll/app/error.h"

namespace plimsoll::app {
namespace {

volatile sig_atomic_t interrupted = 0;

void install(void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction present {};
  sigaction(SIGHUP, nullptr, &present);
  if (present.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // nohup leaves it ignored
}

}  // namespace

InterruptScope::InterruptScope() {
  interrupted = 0;
  install([](int) { interrupted = 1; }, static_cast<int>(SA_RESETHAND | SA_RESTART));
}

InterruptScope::~InterruptScope() { install(SIG_DFL, 0); }

bool InterruptScope::requested() const { return interrupted != 0; }

void InterruptScope::stop_if_requested(std::string_view command) const {
  if (requested()) throw Interrupted(std::string(command) + ": interrupted, nothing is written");
}

}  // namespace plimsoll::app
