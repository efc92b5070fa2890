// Ctrl-C as a request: the work in hand notices it at a safe place.
#pragma once

#include <string_view>

namespace plimsoll::app {

// While one is alive, SIGINT and SIGTERM set a flag. A second one ends the process at once, as the system would.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  bool requested() const;
  // Throws Interrupted, which names the command, if it is requested: for work that writes nothing before its end.
  void stop_if_requested(std::string_view command) const;
};

}  // namespace plimsoll::app
