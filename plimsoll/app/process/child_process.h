// Work in a process of its own.
#pragma once

#include <functional>

namespace plimsoll::app {

// Forks, runs `body` in the child and returns its exit code. SIGINT and SIGTERM are passed on to the child; if this
// process is killed, so is the child. Throws Error if a signal ended it. Threads do not survive a fork: call it before
// any has started.
int run_in_child(const std::function<int()>& body);

}  // namespace plimsoll::app
