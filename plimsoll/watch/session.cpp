#include "plimsoll/watch/session.h"

#include <utility>

namespace plimsoll::watch {
namespace {
thread_local Slots* in_force = nullptr;
}

Session::Session() : previous_(std::exchange(in_force, &slots_)) {}
Session::~Session() { in_force = previous_; }

Slots* current() { return in_force; }

Adopt::Adopt(Slots* slots) : previous_(std::exchange(in_force, slots)) {}
Adopt::~Adopt() { in_force = previous_; }

void report(std::string_view name, const Observation& observation) {
  if (in_force) in_force->report(name, observation);
}

}  // namespace plimsoll::watch
