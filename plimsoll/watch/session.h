// Session of a watch. Ops report to the session in force on their thread, if there is one.
//
//   watch::Session session({.mode = watch::Mode::kTrap});
//   ... train ...
//   write_text(std::cout, session);
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/runtime/overflow_traps.h"
#include "plimsoll/watch/incidents.h"
#include "plimsoll/watch/mode.h"
#include "plimsoll/watch/slots.h"

namespace plimsoll::watch {

struct SessionOptions {
  Mode mode = Mode::kGuard;
  double warn_bits = 2;  // headroom below which a result is worth a warning
  bool stops = false;    // kTrap, kShadow: the first product at an incident, or after it, throws
  // Values that no product's epilogue finds are read, too, in a pass over memory each: values between a Gpt's products,
  // and the amax of each of several products that were one.
  bool every_value = false;
};

// In force on the constructing thread, until destruction there. Nests: the inner one holds; one with Mode::kOff means
// that nobody watches.
class Session {
 public:
  explicit Session(const SessionOptions& options = {});
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Mode mode() const { return options_.mode; }
  bool follows() const { return mode() == Mode::kTrap || mode() == Mode::kShadow; }  // operand by operand
  double warn_bits() const { return options_.warn_bits; }
  bool stops() const { return options_.stops; }
  bool sees_every_value() const { return options_.every_value; }

  Slots& slots() { return slots_; }
  const Slots& slots() const { return slots_; }
  Incidents& incidents() { return incidents_; }
  const Incidents& incidents() const { return incidents_; }

  // Slots with less headroom than warn_bits, or with values that are not finite; is_worse first.
  std::vector<Record> warnings() const;

  // Mode::kTrap: the address of the first instruction that overflowed since the last call; 0: none.
  uintptr_t take_overflow() { return traps_ ? traps_->take() : 0; }

  // Mode::kTrap and kShadow: what watches torch's operators as long as the session is in force; made by the first op.
  void* observer() const { return observer_.get(); }
  void keep_observer(std::shared_ptr<void> observer) { observer_ = std::move(observer); }

 private:
  SessionOptions options_;
  Slots slots_;
  Incidents incidents_;
  std::optional<runtime::OverflowTraps> traps_;
  std::shared_ptr<void> observer_;
  Session* previous_;
};

// In force on this thread; nullptr if nobody watches.
Session* current();

// Puts a session in force on another thread, for an op whose backward runs there. nullptr: nobody watches.
class Adopt {
 public:
  explicit Adopt(Session* session);
  ~Adopt();
  Adopt(const Adopt&) = delete;
  Adopt& operator=(const Adopt&) = delete;

 private:
  Session* previous_;
};

// Reports to the session in force; costs one thread-local read if there is none.
void report(std::string_view name, const Observation& observation);

}  // namespace plimsoll::watch
