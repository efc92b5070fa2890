// Who is watching. Ops report to the session in force on their thread, if there is one.
//
//   watch::Session session;
//   ... train ...
//   for (const watch::Record& record : session.slots().non_finite()) ...
#pragma once

#include <string_view>

#include "plimsoll/watch/slots.h"

namespace plimsoll::watch {

// Makes its own slots the ones in force on the constructing thread, until destruction there. Nests: the inner one
// holds.
class Session {
 public:
  Session();
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Slots& slots() { return slots_; }

 private:
  Slots slots_;
  Slots* previous_;
};

// The slots in force on this thread; nullptr if nobody watches.
Slots* current();

// Puts slots in force on another thread, for an op whose backward runs there. nullptr: nobody watches.
class Adopt {
 public:
  explicit Adopt(Slots* slots);
  ~Adopt();
  Adopt(const Adopt&) = delete;
  Adopt& operator=(const Adopt&) = delete;

 private:
  Slots* previous_;
};

// Reports to the slots in force; costs one thread-local read if there are none.
void report(std::string_view name, const Observation& observation);

}  // namespace plimsoll::watch
