// Ctrl-C as a request: the work in hand notices it at a safe place.
#pragma once

namespace plimsoll::app {

// While one is alive, SIGINT and SIGTERM set a flag. A second one ends the process at once, as the system would.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  bool requested() const;
};

}  // namespace plimsoll::app
